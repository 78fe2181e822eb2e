"""Runs one environment of one episode in this process: off the event loop, checked, with timeouts, closed once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnsmith.env.base import BaseEnvironment
from turnsmith.env.result import StepResult, read_step, read_text
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, describe_failure
from turnsmith.threads import ThreadCall, ThreadPool, is_cancelled_from_outside, shared_threads

__all__ = ["EnvironmentHost", "StepResult"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Methods:
    """What the methods of an environment's class look like."""

    plain_reset: bool
    plain_step: bool
    plain_close: bool
    takes_seed: bool
    takes_task: bool
    has_close: bool
    has_is_done: bool


class EnvironmentHost:
    """One environment in this process, built by its spec when the episode resets.

    Plain methods run in the shared thread pool (with isolation `loop` they are called on the event loop), `async` ones
    on the event loop. Whatever goes wrong in the user's code is raised as an `EnvironmentFailure` that names the
    method, the error and the line. A plain call that times out is abandoned: a thread cannot be stopped.

    Example:
        >>> from turnsmith.env.examples.guess_number import GuessNumber
        >>> async def play():
        ...     host = EnvironmentHost(EnvironmentSpec.of(GuessNumber))
        ...     await host.reset(seed=1)
        ...     result = await host.step("no idea")
        ...     await host.close()
        ...     return result
        >>> asyncio.run(play()).observation
        'Answer with a number from 1 to 16.'
    """

    __slots__ = ("_call_in_thread", "_closed", "_methods", "_prefix", "_spec", "_threads", "environment", "limit")

    def __init__(self, spec: EnvironmentSpec, threads: ThreadPool | None = None) -> None:
        self._spec = spec
        self.limit = spec.call_seconds
        """Timeout of one call, in seconds."""
        self._threads = None if spec.mode == "loop" else threads or shared_threads()
        self._methods: _Methods | None = None
        self._prefix = ""
        self._call_in_thread: ThreadCall[Any] | None = None
        self._closed = False
        self.environment: Any = None
        """The user's object; None before `reset`."""

    @classmethod
    def around(cls, environment: Any) -> EnvironmentHost:
        """A host for an object that the caller has built and reset; with None, stepping is an error."""
        host = cls(EnvironmentSpec(type(environment)))
        if environment is not None:
            host.environment, host._methods = environment, _methods_of(type(environment))
        return host

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment, start its episode and return the first observation."""
        target = self._spec.target
        # A class that is given by name may have to be imported first, which takes time.
        environment_class = target if isinstance(target, type) else await self._in_thread("import", self._load)
        self._methods = methods = _methods_of(environment_class)
        arguments: dict[str, Any] = {}
        if methods.takes_seed:
            arguments["seed"] = seed
        if methods.takes_task:
            arguments["task"] = task
        if methods.plain_reset:
            observation, prefix = await self._in_thread("reset", self._build_and_reset, arguments)
        else:
            await self._in_thread("__init__", self._build)
            observation, prefix = self._call("reset", **arguments), None
        observation = await self._await("reset", observation)
        # The thread has asked for it already, unless `reset` had to be awaited first; it may itself be async.
        prefix = await self._await("get_prompt_prefix", self._call_prefix() if prefix is None else prefix)
        self._prefix = read_text(f"{self._spec.name}.get_prompt_prefix", prefix or "")
        if isinstance(observation, (tuple, list)) and len(observation) == 2:  # Gymnasium: (observation, info)
            observation = observation[0]
        return self._remember(read_text(f"{self._spec.name}.reset", observation))

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        return self._prefix

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        if self._methods is None:
            raise EnvironmentFailure(f"{self._spec.name}: step was called before reset.")
        if self._methods.plain_step:
            result = await self._in_thread("step", self._step, action)
            if isinstance(result, StepResult):
                return result
            returned, count_before = result  # a plain method that wraps an async one
        else:
            count_before = getattr(self.environment, "step_count", None)
            returned = self._call("step", action)
        result = read_step(f"{self._spec.name}.step", await self._await("step", returned))
        self._count_step(count_before)
        return self._with_end(result, await self.is_over())

    async def is_over(self) -> bool:
        """Whether the environment says that its task is over, without a step; a tool call may have ended it."""
        if self._methods is None or not self._methods.has_is_done:
            return False
        return bool(await self._await("is_done", self._call("is_done")))

    async def close(self) -> None:
        """Close the environment. Never raises: a failing `close` is logged."""
        methods = self._methods
        if self._closed or methods is None or self.environment is None or not methods.has_close:
            self._closed = True
            return
        self._closed = True
        if self.is_busy and self._call_in_thread is not None:
            # A call that timed out still runs in its thread: close after it, because the user's class need not be
            # thread-safe. Nobody waits for that.
            loop = asyncio.get_running_loop()
            self._call_in_thread.future.add_done_callback(lambda _: loop.create_task(self._close(methods.plain_close)))
            return
        await self._close(methods.plain_close)

    @property
    def is_busy(self) -> bool:
        """Whether an abandoned call still runs in its thread."""
        return self._call_in_thread is not None and self._call_in_thread.is_running

    async def run(self, name: str, function: Callable[..., Any], *args: Any, limit: float) -> Any:
        """Call something else that uses the environment, such as a reward function, like a method of it."""
        return await self._await(name, await self._in_thread(name, function, *args, limit=limit))

    async def settle(self) -> None:
        """Wait for an abandoned call, however long it takes."""
        if self._call_in_thread is not None:
            await asyncio.wait((self._call_in_thread.future,))

    async def _close(self, plain: bool) -> None:
        try:
            closing = await self._in_thread("close", self._call, "close") if plain else self._call("close")
            await self._await("close", closing)
        except Exception as error:
            logger.warning("%s", error)

    # These run in a thread. Each does all that one call needs, because a hop to a thread costs more than most steps.

    def _load(self) -> type:
        try:
            return self._spec.load()
        except Exception as error:
            raise EnvironmentFailure(str(error)) from error

    def _build(self) -> None:
        try:
            self.environment = self._spec.build()
        except (Exception, SystemExit) as error:  # user code may also call sys.exit()
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.__init__", error)) from error

    def _build_and_reset(self, arguments: dict[str, Any]) -> tuple[Any, Any]:
        self._build()
        observation = self._call("reset", **arguments)
        return observation, None if inspect.isawaitable(observation) else self._call_prefix()

    def _step(self, action: str) -> StepResult | tuple[Awaitable[Any], Any]:
        """Do one action; what must be awaited is returned as it is, with the step count before it."""
        count_before = getattr(self.environment, "step_count", None)
        returned = self._call("step", action)
        if inspect.isawaitable(returned):
            return returned, count_before
        result = read_step(f"{self._spec.name}.step", returned)
        self._count_step(count_before)
        is_over = self._call("is_done") if self._methods and self._methods.has_is_done else False
        return self._with_end(result, is_over)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.environment, method)(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error

    def _call_prefix(self) -> Any:
        return self._call("get_prompt_prefix") if hasattr(self.environment, "get_prompt_prefix") else ""

    async def _in_thread(
        self, method: str, function: Callable[..., Any], *args: Any, limit: float | None = None
    ) -> Any:
        if self._threads is None:
            return function(*args)
        self._call_in_thread = call = self._threads.start(function, *args)
        try:
            result = await call.wait(limit or self.limit)
        except TimeoutError:
            if call.is_running:
                raise self._timeout(method, limit) from None
            raise  # the user's own
        finally:
            if not call.is_running:
                self._call_in_thread = None  # it holds the result, which may be large
        return result

    def _timeout(self, method: str, limit: float | None = None) -> EnvironmentTimeout:
        advice = "" if limit else "; environment.call_seconds allows more"
        seconds = limit or self.limit
        return EnvironmentTimeout(f"{self._spec.name}.{method} took longer than {seconds:g} seconds{advice}.")

    async def _await(self, method: str, returned: Any) -> Any:
        """Await what an `async` method (or one that wraps it) returned; anything else is passed on."""
        if not inspect.isawaitable(returned):
            return returned
        timer = asyncio.timeout(self.limit)
        try:
            async with timer:
                return await returned
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, TimeoutError) and timer.expired():
                raise self._timeout(method) from None
            if is_cancelled_from_outside(error):
                raise
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error

    def _count_step(self, count_before: Any) -> None:
        if isinstance(count_before, int) and self.environment.step_count == count_before:
            self.environment.step_count = count_before + 1

    def _remember(self, observation: str) -> str:
        if isinstance(self.environment, BaseEnvironment):
            self.environment.last_observation = observation
        return observation

    def _with_end(self, result: StepResult, is_over: Any) -> StepResult:
        """Combine what `step` returned with what the object itself says about the end."""
        if isinstance(self.environment, BaseEnvironment):
            result.terminated = result.terminated or bool(self.environment.done)
        result.truncated = result.truncated or (bool(is_over) and not result.terminated)
        self._remember(result.observation)
        return result


@lru_cache(maxsize=256)
def _methods_of(environment_class: Any) -> _Methods:
    def is_plain(name: str) -> bool:
        return not inspect.iscoroutinefunction(getattr(environment_class, name, None))

    parameters = inspect.signature(environment_class.reset).parameters
    takes_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    close = getattr(environment_class, "close", None)
    return _Methods(
        plain_reset=is_plain("reset"),
        plain_step=is_plain("step") and is_plain("is_done"),
        plain_close=is_plain("close"),
        takes_seed="seed" in parameters or takes_anything,
        takes_task="task" in parameters or takes_anything,
        # The default does nothing, so it is not worth a thread hop.
        has_close=callable(close) and close is not BaseEnvironment.close,
        has_is_done=callable(getattr(environment_class, "is_done", None)),
    )
