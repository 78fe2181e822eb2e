"""Runs one environment for one episode: off the event loop, checked, and closed exactly once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnwise.env.base import BaseEnvironment
from turnwise.env.result import StepResult, read_step, read_text
from turnwise.env.spec import EnvironmentSpec
from turnwise.errors import EnvironmentFailure, describe_failure
from turnwise.threads import ThreadPool, is_cancelled_from_outside, shared_threads

__all__ = ["EnvironmentHost", "StepResult"]

logger = logging.getLogger(__name__)
_PLAIN = frozenset({str, bool, tuple, type(None)})


class EnvironmentHost:
    """One environment, built by its spec when the episode resets.

    Plain methods run in the shared thread pool, `async` ones on the event loop. Whatever the user's code does wrong
    comes out as an `EnvironmentFailure` with a sentence that names the method, the error and the line.

    Example:
        >>> from turnwise.env.examples.guess_number import GuessNumber
        >>> async def play():
        ...     host = EnvironmentHost(EnvironmentSpec.of(GuessNumber))
        ...     await host.reset(seed=1)
        ...     result = await host.step("no idea")
        ...     await host.close()
        ...     return result
        >>> asyncio.run(play()).observation
        'Answer with a number from 1 to 16.'
    """

    __slots__ = ("_busy", "_closed", "_methods", "_prefix", "_spec", "_threads", "environment")

    def __init__(self, spec: EnvironmentSpec, threads: ThreadPool | None = None) -> None:
        self._spec = spec
        self._threads = threads or shared_threads()
        self._methods: _Methods | None = None
        self._prefix = ""
        self._busy: asyncio.Future[Any] | None = None
        self._closed = False
        self.environment: Any = None
        """The user's object; None before `reset`."""

    @classmethod
    def around(cls, environment: Any) -> EnvironmentHost:
        """A host for an object that the caller has built and reset; without one (None), no step is possible."""
        host = cls(EnvironmentSpec(type(environment)))
        if environment is not None:
            host.environment, host._methods = environment, _methods(type(environment))
        return host

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment, start its episode and return the first observation."""
        # A class given by name may have to be imported first, which takes time.
        target = self._spec.target
        self._methods = methods = _methods(target if isinstance(target, type) else await self._in_thread(self._load))
        arguments: dict[str, Any] = {}
        if methods.takes_seed:
            arguments["seed"] = seed
        if methods.takes_task:
            arguments["task"] = task
        if methods.plain_reset:
            observation, prefix = await self._in_thread(self._build_and_reset, arguments)
        else:
            await self._in_thread(self._build)
            observation, prefix = self._call("reset", **arguments), None
        observation = await self._finish("reset", observation)
        # Asked for in the thread already, unless `reset` had to be awaited first; it may itself be async.
        prefix = await self._finish("get_prompt_prefix", self._call_prefix() if prefix is None else prefix)
        self._prefix = read_text(f"{self._spec.name}.get_prompt_prefix", prefix or "")
        if isinstance(observation, (tuple, list)) and len(observation) == 2:  # Gymnasium: (observation, info)
            observation = observation[0]
        return self._remember(read_text(f"{self._spec.name}.reset", observation))

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        return self._prefix

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        methods = self._methods
        if methods is None:
            raise EnvironmentFailure(f"{self._spec.name}: step was called before reset.")
        if methods.plain_step:
            answer = await self._in_thread(self._step_and_ask, action)
            if isinstance(answer, StepResult):
                return answer
            returned, before = answer
        else:
            before = getattr(self.environment, "step_count", None)
            returned = self._call("step", action)
        result = read_step(f"{self._spec.name}.step", await self._finish("step", returned))
        self._count(before)
        over = await self._finish("is_done", self._call("is_done")) if methods.has_is_done else False
        return self._settle(result, over)

    async def is_over(self) -> bool:
        """Whether the environment says that its task is over, without a step; a tool call may have ended it."""
        methods = self._methods
        if methods is None or not methods.has_is_done:
            return False
        return bool(await self._finish("is_done", self._call("is_done")))

    async def close(self) -> None:
        """Close the environment. Never raises: a failing `close` is logged and costs nothing else."""
        methods = self._methods
        if self._closed or methods is None or self.environment is None or not methods.has_close:
            self._closed = True
            return
        self._closed = True
        if self._busy is not None and not self._busy.done():
            # A call that ran out of time is still in its thread: close after it, because the user's class need not be
            # thread-safe. Nobody waits for that.
            loop = asyncio.get_running_loop()
            self._busy.add_done_callback(lambda _: loop.create_task(self._close(methods.plain_close)))
            return
        await self._close(methods.plain_close)

    async def _close(self, plain: bool) -> None:
        try:
            closing = await self._threads.run(self._call, "close") if plain else self._call("close")
            await self._finish("close", closing)
        except Exception as error:
            logger.warning("%s", error)

    # What runs in a thread: everything one call needs in a single hop, because a hop costs more than most steps.

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

    def _step_and_ask(self, action: str) -> StepResult | tuple[Awaitable[Any], Any]:
        before = getattr(self.environment, "step_count", None)
        returned = self._call("step", action)
        if inspect.isawaitable(returned):
            return returned, before
        result = read_step(f"{self._spec.name}.step", returned)
        self._count(before)
        over = self._call("is_done") if self._methods and self._methods.has_is_done else False
        return self._settle(result, over)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.environment, method)(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error

    def _call_prefix(self) -> Any:
        return self._call("get_prompt_prefix") if hasattr(self.environment, "get_prompt_prefix") else ""

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        self._busy = self._threads.start(function, *args)
        # Shielded: when the episode is cancelled or out of time the future lives on, so that `close` can wait for it.
        result = await asyncio.shield(self._busy)
        self._busy = None  # it holds the result, which may be large
        return result

    async def _finish(self, method: str, returned: Any) -> Any:
        """Await what an `async` method (or one that wraps it) returned; anything else is passed on."""
        # Asking takes longer than looking at the type, which nearly always tells.
        if type(returned) in _PLAIN or not inspect.isawaitable(returned):
            return returned
        try:
            return await returned
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error):
                raise
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error

    def _count(self, before: Any) -> None:
        if isinstance(before, int) and self.environment.step_count == before:
            self.environment.step_count = before + 1

    def _remember(self, observation: str) -> str:
        if isinstance(self.environment, BaseEnvironment):
            self.environment.last_observation = observation
        return observation

    def _settle(self, result: StepResult, over: Any) -> StepResult:
        """Combine what `step` returned with what the object itself says about the end."""
        if isinstance(self.environment, BaseEnvironment):
            result.terminated = result.terminated or bool(self.environment.done)
        result.truncated = result.truncated or (bool(over) and not result.terminated)
        self._remember(result.observation)
        return result


@dataclass(frozen=True, slots=True)
class _Methods:
    """What a class's methods look like; looked up once a class."""

    plain_reset: bool
    plain_step: bool
    plain_close: bool
    takes_seed: bool
    takes_task: bool
    has_close: bool
    has_is_done: bool


@lru_cache(maxsize=256)
def _methods(found: Any) -> _Methods:
    def plain(name: str) -> bool:
        return not inspect.iscoroutinefunction(getattr(found, name, None))

    parameters = inspect.signature(found.reset).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    close = getattr(found, "close", None)
    return _Methods(
        plain_reset=plain("reset"),
        plain_step=plain("step") and plain("is_done"),
        plain_close=plain("close"),
        takes_seed="seed" in parameters or anything,
        takes_task="task" in parameters or anything,
        # The default does nothing, so it is not worth a thread hop.
        has_close=callable(close) and close is not BaseEnvironment.close,
        has_is_done=callable(getattr(found, "is_done", None)),
    )
