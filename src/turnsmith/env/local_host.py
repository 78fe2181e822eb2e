"""Runs the environment of one episode in this process: off the event loop, checked, with timeouts, closed once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from turnsmith.concurrency.clocks import OutOfTime
from turnsmith.concurrency.environment_threads import (
    EnvironmentThread,
    EnvironmentThreads,
    EventLoopThread,
    shared_environment_threads,
)
from turnsmith.concurrency.generators import Generators, install
from turnsmith.concurrency.threads import is_cancelled_from_outside, shared_threads
from turnsmith.env.base import BaseEnvironment
from turnsmith.env.opening import Speaker, read_opening
from turnsmith.env.signatures import NO_TASK, needs_task
from turnsmith.env.spec import EnvironmentSpec, own_copy
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, Overloaded, user_failure
from turnsmith.tools.step_result import StepResult, read_step, read_text
from turnsmith.tools.step_tool import StepTool
from turnsmith.tools.tool import Tool, tool_methods, tools_of

__all__ = ["EnvironmentHost", "StepResult"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Methods:
    """What is known about the methods of an environment's class."""

    is_async: bool
    """Whether `reset`, `step` and all tools are async, so that the environment needs no thread."""
    takes_seed: bool
    takes_task: bool
    needs_task: bool
    """Whether `task` has no default."""
    has_close: bool
    has_is_done: bool
    has_default_is_done: bool


class EnvironmentHost:
    """One environment in this process, built by its spec when the episode resets.

    All calls of one object come from one thread: the event loop's, if `reset`, `step` and its tools are `async` or its
    isolation is `loop`, else one of the pool's, which awaits its `async` methods too. Whatever goes wrong in the user's
    code is raised as an `EnvironmentFailure` that names the method, the error and the line. A plain call that times out
    is abandoned: a thread cannot be stopped.

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

    __slots__ = ("_closed", "_methods", "_prefix", "_spec", "_threads", "environment", "examples", "limit", "thread")

    def __init__(self, spec: EnvironmentSpec, threads: EnvironmentThreads | None = None) -> None:
        install()
        self._spec = spec
        self.limit = spec.call_seconds
        """Timeout of one call, in seconds."""
        self._threads = threads or shared_environment_threads()
        self._methods: _Methods | None = None
        self._prefix = ""
        self._closed = False
        self.thread: EnvironmentThread | EventLoopThread | None = None
        """Where the object lives; None before `reset`."""
        self.environment: Any = None
        """The user's object; None before `reset`."""
        self.examples: tuple[tuple[Speaker, str], ...] = ()
        """The messages that `reset` put between the system prompt and the first observation."""

    @classmethod
    def around(cls, environment: Any) -> EnvironmentHost:
        """A host for an object that the caller has built and reset; with None, stepping is an error.

        It lives in the thread of the event loop that steps it.
        """
        host = cls(EnvironmentSpec(type(environment)))
        host.thread = EventLoopThread()
        if environment is not None:
            host.environment, host._methods = environment, _methods_of(type(environment))
        return host

    @property
    def is_async(self) -> bool:
        """Whether all methods of the object are async."""
        return self._methods is not None and self._methods.is_async

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment, start its episode and return the first observation."""
        target, spec = self._spec.target, self._spec
        # A class passed by name may have to be imported first, which takes time.
        loaded = target if isinstance(target, type) else await self.run("import", self._load)
        self._methods = methods = _methods_of(loaded)
        self.thread = EventLoopThread() if spec.mode == "loop" or methods.is_async else self._threads.assign()
        self.thread.generators = Generators(seed)
        arguments: dict[str, Any] = {}
        if methods.takes_seed:
            arguments["seed"] = seed
        if methods.takes_task:
            if task is None and methods.needs_task:
                raise EnvironmentFailure(f"{spec.name}.reset {NO_TASK}")
            arguments["task"] = own_copy(task)
        observation, prefix = await self.run("reset", self._build_and_reset, arguments)
        if isinstance(self.environment, BaseEnvironment) and self.environment.done:
            raise EnvironmentFailure(
                f"{spec.name}.reset has set done: an episode begins with something for the model to do. Leave such "
                "starts out, or let reset choose another."
            )
        opening = read_opening(f"{spec.name}.reset", observation)
        prefix = read_text(f"{spec.name}.get_prompt_prefix", prefix or "")
        self._prefix = "\n\n".join(filter(None, (prefix, opening.system)))
        self.examples = opening.examples
        return self._remember(opening.observation)

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        return self._prefix

    def tools(self) -> list[Tool]:
        """Its `@tool` methods, which are called where it lives, and those whose calls are steps."""
        tools = [*tools_of(self.environment), *getattr(self.environment, "_tools_of_server", ())]
        for tool in tools:
            tool.thread = self.thread
        definitions = getattr(self.environment, "step_tools", ())
        return [*tools, *(StepTool(definition, self.step, limit=self.limit) for definition in definitions)]

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        if self._methods is None:
            raise EnvironmentFailure(f"{self._spec.name}: step was called before reset.")
        return await self.run("step", self._step, action)

    async def is_over(self) -> bool:
        """Whether the environment says that its task is over, without a step; a tool call may have ended it."""
        if self._methods is None or not self._methods.has_is_done:
            return False
        if self._methods.has_default_is_done:  # it reads two attributes, and must not wait for a tool that hangs
            return self.environment.is_done()
        return bool(await self.run("is_done", self._call, "is_done", _unchanged))

    async def solve(self) -> Any:
        """What the environment's own `solve` returns; None if it has none."""
        if not callable(getattr(self.environment, "solve", None)):
            return None
        return await self.run("solve", self._call, "solve", _unchanged)

    async def close(self) -> None:
        """Close the environment. Never raises: a failing `close` is logged."""
        if self._closed or self.thread is None:
            return
        self._closed = True
        closing = asyncio.get_running_loop().create_task(self._close(self.thread))
        _closing.add(closing)  # an event loop keeps only weak references to its tasks
        closing.add_done_callback(_closing.discard)
        if not self.is_busy:  # else a call that timed out still runs in the thread
            await asyncio.shield(closing)

    @property
    def is_busy(self) -> bool:
        """Whether an abandoned call still runs in its thread."""
        return self.thread is not None and self.thread.is_busy

    async def run(self, name: str, function: Callable[..., Any], *args: Any, limit: float | None = None) -> Any:
        """Call a function that uses the environment, such as a reward function, in the environment's thread."""
        thread: Any = self.thread or shared_threads()
        try:
            return await thread.run(function, *args, limit=limit or self.limit)
        except OutOfTime:
            advice = "" if limit else "; environment.call_seconds allows more"
            sentence = f"{self._spec.name}.{name} took longer than {limit or self.limit:g} seconds{advice}."
            raise EnvironmentTimeout(sentence) from None
        except Overloaded as error:
            raise Overloaded(f"{self._spec.name}.{name} could not begin. {error}") from error

    async def settle(self) -> None:
        """Wait for an abandoned call, however long it takes."""
        if self.thread is not None:
            await self.thread.settle()

    async def _close(self, thread: EnvironmentThread | EventLoopThread) -> None:
        await thread.settle()
        try:
            if self.environment is not None and self._methods is not None and self._methods.has_close:
                await self.run("close", self._call, "close", _unchanged)
        except Exception as error:
            logger.warning("%s", error)
        finally:
            thread.leave()

    # These are called where the environment lives. Each does all that one call needs, because a hop to a thread costs
    # more than most steps; if the user's method is async, what is returned is a coroutine that does the rest.

    def _load(self) -> type:
        try:
            return self._spec.load()
        except Exception as error:
            raise EnvironmentFailure(str(error)) from error

    def _build_and_reset(self, arguments: dict[str, Any]) -> Any:
        try:
            self.environment = self._spec.build()
        except (Exception, SystemExit) as error:  # user code may also call sys.exit()
            raise user_failure(f"{self._spec.name}.__init__", error, callers=2) from error
        return self._call("reset", self._with_prefix, **arguments)

    def _with_prefix(self, observation: Any) -> Any:
        if not hasattr(self.environment, "get_prompt_prefix"):
            return observation, ""
        return self._call("get_prompt_prefix", lambda prefix: (observation, prefix))

    def _step(self, action: str) -> Any:
        return self._call("step", partial(self._end_step, getattr(self.environment, "step_count", None)), action)

    def _end_step(self, count_before: Any, returned: Any) -> Any:
        result = read_step(f"{self._spec.name}.step", returned)
        self._count_step(count_before)
        has_is_done = self._methods is not None and self._methods.has_is_done
        return self._call("is_done", partial(self._with_end, result)) if has_is_done else self._with_end(result, False)

    def _call(self, method: str, use: Callable[[Any], Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment, then `use` what it returned, which may have to be awaited first."""
        try:
            returned = getattr(self.environment, method)(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise user_failure(f"{self._spec.name}.{method}", error) from error
        return self._await(method, use, returned) if inspect.isawaitable(returned) else use(returned)

    async def _await(self, method: str, use: Callable[[Any], Any], returned: Any) -> Any:
        try:
            value = await returned
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error):
                raise
            raise user_failure(f"{self._spec.name}.{method}", error) from error
        used = use(value)
        return await used if inspect.isawaitable(used) else used

    def _count_step(self, count_before: Any) -> None:
        if isinstance(count_before, int) and self.environment.step_count == count_before:
            self.environment.step_count = count_before + 1

    def _remember(self, observation: str) -> str:
        if isinstance(self.environment, BaseEnvironment):
            self.environment.last_observation = observation
        return observation

    def _with_end(self, result: StepResult, is_over: Any) -> StepResult:
        """The one rule for the end of an episode: what `step` returned, `done` and `is_done` (with `max_steps`)."""
        if isinstance(self.environment, BaseEnvironment):
            result.terminated = result.terminated or bool(self.environment.done)
        result.truncated = result.truncated or (bool(is_over) and not result.terminated)
        self._remember(result.observation)
        return result


def _unchanged(value: Any) -> Any:
    return value


_closing: set[asyncio.Task[None]] = set()


@lru_cache(maxsize=256)
def _methods_of(environment_class: Any) -> _Methods:
    parameters = inspect.signature(environment_class.reset).parameters
    takes_anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    close = getattr(environment_class, "close", None)
    # The default does nothing, so it is not worth a thread hop.
    has_close = callable(close) and close is not BaseEnvironment.close
    names = ["reset", "step", *tool_methods(environment_class)]
    return _Methods(
        is_async=all(inspect.iscoroutinefunction(getattr(environment_class, name, None)) for name in names),
        takes_seed="seed" in parameters or takes_anything,
        takes_task="task" in parameters or takes_anything,
        needs_task=needs_task(environment_class),
        has_close=has_close,
        has_is_done=callable(getattr(environment_class, "is_done", None)),
        has_default_is_done=getattr(environment_class, "is_done", None) is BaseEnvironment.is_done,
    )
