"""Runs one environment for one episode: off the event loop, checked, within its time, and closed exactly once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from turnsmith.env.base import BaseEnvironment
from turnsmith.env.deadlines import TimedCall, deadlines
from turnsmith.env.methods import Methods, methods_of
from turnsmith.env.result import StepResult, read_step, read_text
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, describe_failure
from turnsmith.threads import ThreadPool, is_cancelled_from_outside, shared_threads

__all__ = ["EnvironmentHost", "StepResult"]

logger = logging.getLogger(__name__)
_PLAIN = frozenset({str, bool, tuple, type(None)})


class EnvironmentHost:
    """One environment in this process, built by its spec when the episode resets.

    Plain methods run in the shared thread pool (where the spec says `loop`, they are called as they are), `async` ones
    on the event loop. Whatever the user's code does wrong comes out as an `EnvironmentFailure` with a sentence that
    names the method, the error and the line. A call that takes too long is abandoned: a thread cannot be stopped.

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

    __slots__ = ("_busy", "_closed", "_methods", "_prefix", "_spec", "_threads", "environment", "limit")

    def __init__(self, spec: EnvironmentSpec, threads: ThreadPool | None = None) -> None:
        self._spec = spec
        self.limit = spec.call_seconds
        """Seconds that a call may take."""
        self._threads = None if spec.mode == "loop" else threads or shared_threads()
        self._methods: Methods | None = None
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
            host.environment, host._methods = environment, methods_of(type(environment))
        return host

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment, start its episode and return the first observation."""
        # A class given by name may have to be imported first, which takes time.
        target = self._spec.target
        found = target if isinstance(target, type) else await self._in_thread("import", self._load)
        self._methods = methods = methods_of(found)
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
            answer = await self._in_thread("step", self.step_here, action)
            return answer if isinstance(answer, StepResult) else await self.finish_step(*answer)
        before = getattr(self.environment, "step_count", None)
        return await self.finish_step(self._call("step", action), before)

    @property
    def has_plain_step(self) -> bool:
        """Whether `step` is made to run in a thread."""
        return self._methods is not None and self._methods.plain_step

    async def finish_step(self, returned: Any, before: Any) -> StepResult:
        """Wait for what `step` returned, and read it."""
        result = read_step(f"{self._spec.name}.step", await self._finish("step", returned))
        self._count(before)
        has_is_done = self._methods is not None and self._methods.has_is_done
        over = await self._finish("is_done", self._call("is_done")) if has_is_done else False
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
        if self.is_busy and self._busy is not None:
            # A call that ran out of time is still in its thread: close after it, because the user's class need not be
            # thread-safe. Nobody waits for that.
            loop = asyncio.get_running_loop()
            self._busy.add_done_callback(lambda _: loop.create_task(self._close(methods.plain_close)))
            return
        await self._close(methods.plain_close)

    @property
    def is_busy(self) -> bool:
        """Whether a call that was abandoned still runs in its thread."""
        return self._busy is not None and not self._busy.done()

    async def run(self, name: str, function: Callable[..., Any], *args: Any, limit: float) -> Any:
        """Call something else that looks at the environment, such as a reward function, like a method of it."""
        return await self._finish(name, await self._in_thread(name, function, *args, limit=limit))

    async def settle(self) -> None:
        """Wait for a call that was abandoned, however long it takes."""
        if self._busy is not None:
            await asyncio.wait((self._busy,))

    async def _close(self, plain: bool) -> None:
        try:
            closing = await self._in_thread("close", self._call, "close") if plain else self._call("close")
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

    def step_here(self, action: str) -> StepResult | tuple[Awaitable[Any], Any]:
        """Do one action in the calling thread. What must be awaited comes back as it is, for `finish_step`."""
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

    async def _in_thread(
        self, method: str, function: Callable[..., Any], *args: Any, limit: float | None = None
    ) -> Any:
        if self._threads is None:
            return function(*args)
        call = TimedCall(function, args)
        self._busy = busy = self._threads.start(call)
        if not busy.done():
            # Shielded: when the episode is cancelled or out of time the future lives on, so that `close` can wait.
            waiting = asyncio.shield(busy)
            limits = deadlines(limit or self.limit)
            number = limits.begin(partial(call.give_up, waiting, limits.limit))
            try:
                await waiting
            except (TimeoutError, asyncio.CancelledError) as error:
                busy.add_done_callback(_forget)
                raise self.late(method, limit) if isinstance(error, TimeoutError) else error from None
            finally:
                limits.end(number)
        self._busy = None  # it holds the result, which may be large
        return busy.result()

    def late(self, method: str, limit: float | None = None) -> EnvironmentTimeout:
        """What to say when a call took too long."""
        told = f"{self._spec.name}.{method} took longer than {limit or self.limit:g} seconds"
        return EnvironmentTimeout(f"{told}." if limit else f"{told}; environment.call_seconds allows more.")

    async def _finish(self, method: str, returned: Any) -> Any:
        """Await what an `async` method (or one that wraps it) returned; anything else is passed on."""
        # Asking takes longer than looking at the type, which nearly always tells.
        if type(returned) in _PLAIN or not inspect.isawaitable(returned):
            return returned
        task, limits = asyncio.current_task(), deadlines(self.limit)
        expired: list[bool] = []
        number = limits.begin(partial(_cancel, task, expired))
        try:
            value = await returned
            if expired and task is not None:  # it has ignored its cancellation, and is done all the same
                task.uncancel()
            return value
        except (Exception, asyncio.CancelledError) as error:
            # As in `asyncio.timeout`: taken back, unless somebody else cancelled the task as well.
            if expired and task is not None and task.uncancel() == 0:
                raise self.late(method) from None
            if is_cancelled_from_outside(error):
                raise
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error
        finally:
            limits.end(number)

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


def _cancel(task: asyncio.Task[Any] | None, expired: list[bool]) -> None:
    expired.append(True)
    if task is not None:
        task.cancel()


def _forget(future: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more, so nobody is to be told that it failed."""
    if not future.cancelled():
        future.exception()
