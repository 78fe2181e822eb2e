"""Runs one environment for one episode: off the event loop, checked, and closed exactly once."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from turnwise.env.base import BaseEnvironment
from turnwise.env.spec import EnvironmentSpec
from turnwise.env.threads import ThreadPool, shared_threads
from turnwise.errors import EnvironmentFailure, TurnwiseError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepResult:
    """What one step gave, in one shape whatever the environment returned."""

    observation: str
    reward: float
    terminated: bool
    """The task is over."""
    truncated: bool
    """The episode was cut (the environment's own step limit)."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether no further step may follow."""
        return self.terminated or self.truncated


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

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment, start its episode and return the first observation."""
        # A class given by name may have to be imported first, which takes time.
        target = self._spec.target
        found = target if isinstance(target, type) else await self._in_thread(self._load)
        self._methods = methods = _methods(found)
        wanted: dict[str, Any] = {}
        if methods.takes_seed:
            wanted["seed"] = seed
        if methods.takes_task:
            wanted["task"] = task
        if methods.plain_reset:
            observation, prefix = await self._in_thread(self._build_and_reset, wanted)
        else:
            await self._in_thread(self._build)
            observation = await self._guard("reset", self.environment.reset, wanted)
            prefix = None
        if inspect.isawaitable(observation):
            observation = await self._finish("reset", observation)
        if prefix is None:
            prefix = await self._guard("get_prompt_prefix", getattr(self.environment, "get_prompt_prefix", str), {})
        self._prefix = self._text("get_prompt_prefix", prefix or "")
        if isinstance(observation, (tuple, list)) and len(observation) == 2:  # Gymnasium: (observation, info)
            observation = observation[0]
        return self._observe("reset", observation)

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        return self._prefix

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        methods = self._methods
        if methods is None:
            raise EnvironmentFailure(f"{self._spec.name}: step was called before reset.")
        if methods.plain_step:
            returned, over = await self._in_thread(self._step, action)
            if not inspect.isawaitable(returned):
                return self._result(returned, over)
            returned = await self._finish("step", returned)
        else:
            before = getattr(self.environment, "step_count", None)
            returned = await self._guard("step", self.environment.step, {"action": action}, positional=True)
            self._count(before)
        over = False
        if methods.has_is_done:
            over = bool(await self._guard("is_done", self.environment.is_done, {}))
        return self._result(returned, over)

    async def close(self) -> None:
        """Close the environment. Never raises: a failing `close` is logged and costs nothing else."""
        methods = self._methods
        if self._closed or methods is None or self.environment is None:
            self._closed = True
            return
        self._closed = True
        if not methods.has_close:
            return
        if self._busy is not None and not self._busy.done():
            # A call that ran out of time is still in its thread: close after it, because the user's class need not be
            # thread-safe. Nobody waits for that.
            loop = asyncio.get_running_loop()
            self._busy.add_done_callback(lambda _: loop.create_task(self._close()))
            return
        await self._close()

    async def _close(self) -> None:
        try:
            if self._methods is not None and self._methods.plain_close:
                closing = await self._threads.run(self.environment.close)
                if inspect.isawaitable(closing):
                    await closing
            else:
                await self.environment.close()
        except Exception as error:
            logger.warning("%s", describe_failure(f"{self._spec.name}.close", error))

    # What runs in a thread: everything one call needs in a single hop, because a hop costs more than most steps.

    def _load(self) -> type:
        try:
            return self._spec.load()
        except TurnwiseError as error:
            raise EnvironmentFailure(str(error)) from error

    def _build(self) -> None:
        try:
            self.environment = self._spec.build()
        except BaseException as error:
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.__init__", error)) from error

    def _build_and_reset(self, wanted: dict[str, Any]) -> tuple[Any, Any]:
        self._build()
        observation = self._call("reset", self.environment.reset, **wanted)
        if inspect.isawaitable(observation) or (self._methods and not self._methods.plain_prefix):
            return observation, None
        if not hasattr(self.environment, "get_prompt_prefix"):
            return observation, ""
        return observation, self._call("get_prompt_prefix", self.environment.get_prompt_prefix)

    def _step(self, action: str) -> tuple[Any, bool]:
        before = getattr(self.environment, "step_count", None)
        returned = self._call("step", self.environment.step, action)
        if inspect.isawaitable(returned):
            return returned, False
        self._count(before)
        if self._methods is None or not self._methods.has_is_done:
            return returned, False
        over = self._call("is_done", self.environment.is_done)
        return returned, bool(over) if not inspect.isawaitable(over) else False

    def _call(self, method: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        self._busy = self._threads.start(function, *args)
        # Shielded: when the episode is cancelled or out of time the future must live on, so that `close` can wait for it.
        return await asyncio.shield(self._busy)

    async def _guard(
        self, method: str, function: Callable[..., Any], arguments: dict[str, Any], positional: bool = False
    ) -> Any:
        try:
            returned = function(*arguments.values()) if positional else function(**arguments)
        except Exception as error:
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error
        return await self._finish(method, returned) if inspect.isawaitable(returned) else returned

    async def _finish(self, method: str, awaitable: Any) -> Any:
        try:
            return await awaitable
        except Exception as error:
            raise EnvironmentFailure(describe_failure(f"{self._spec.name}.{method}", error)) from error

    # Reading what the user's code returned.

    def _count(self, before: Any) -> None:
        if isinstance(before, int) and self.environment.step_count == before:
            self.environment.step_count = before + 1

    def _observe(self, method: str, observation: Any) -> str:
        text = self._text(method, observation)
        if isinstance(self.environment, BaseEnvironment):
            self.environment.last_observation = text
        return text

    def _text(self, method: str, text: Any) -> str:
        if not isinstance(text, str):
            raise EnvironmentFailure(
                f"{self._spec.name}.{method} gave an observation of type {type(text).__name__}; it must be a string."
                if method != "get_prompt_prefix"
                else f"{self._spec.name}.get_prompt_prefix returned {type(text).__name__}; it must return a string."
            )
        if text.isascii():
            return text
        # Half a surrogate pair is legal in a Python string but not in UTF-8: no tokenizer and no file can hold it.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _result(self, returned: Any, over: bool) -> StepResult:
        name = f"{self._spec.name}.step"
        if not isinstance(returned, (tuple, list)) or len(returned) not in (4, 5):
            got = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
            raise EnvironmentFailure(
                f"{name} returned {got}; it must return (observation, reward, done, info) "
                "or (observation, reward, terminated, truncated, info)."
            )
        observation, reward, *ends, info = returned
        terminated = _flag(name, "done" if len(ends) == 1 else "terminated", ends[0])
        truncated = len(ends) == 2 and _flag(name, "truncated", ends[1])
        if info is None:
            info = {}
        if not isinstance(info, dict):
            raise EnvironmentFailure(f"{name} returned an info of type {type(info).__name__}; it must be a dict.")
        finished = bool(getattr(self.environment, "done", False)) if self._methods and self._methods.has_done else False
        terminated = terminated or finished
        truncated = truncated or (over and not terminated)
        return StepResult(self._observe("step", observation), _reward(name, reward), terminated, truncated, info)


@dataclass(frozen=True, slots=True)
class _Methods:
    """What a class's methods look like; looked up once a class."""

    plain_reset: bool
    plain_step: bool
    plain_close: bool
    plain_prefix: bool
    takes_seed: bool
    takes_task: bool
    has_close: bool
    has_is_done: bool
    has_done: bool


@lru_cache(maxsize=256)
def _methods(found: type) -> _Methods:
    def plain(name: str) -> bool:
        return not inspect.iscoroutinefunction(getattr(found, name, None))

    parameters = inspect.signature(found.reset).parameters  # pyright: ignore[reportAttributeAccessIssue]
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    close = getattr(found, "close", None)
    return _Methods(
        plain_reset=plain("reset"),
        plain_step=plain("step") and plain("is_done"),
        plain_close=plain("close"),
        plain_prefix=plain("get_prompt_prefix"),
        takes_seed="seed" in parameters or anything,
        takes_task="task" in parameters or anything,
        # The default does nothing, so it is not worth a thread hop.
        has_close=callable(close) and close is not BaseEnvironment.close,
        has_is_done=callable(getattr(found, "is_done", None)),
        has_done=issubclass(found, BaseEnvironment),
    )


def _flag(name: str, what: str, value: Any) -> bool:
    # `in` instead of isinstance: NumPy has a bool of its own.
    try:
        if value in (True, False):
            return bool(value)
    except Exception:  # an array, which has no single truth
        pass
    raise EnvironmentFailure(f"{name} returned {what} = {_short(value)}; it must be True or False.")


def _reward(name: str, value: Any) -> float:
    try:
        reward = math.nan if isinstance(value, (str, bytes)) else float(value)
    except Exception:
        reward = math.nan
    if not math.isfinite(reward):
        raise EnvironmentFailure(f"{name} returned the reward {_short(value)}; it must be a finite number.")
    return reward


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}..."


def describe_failure(name: str, error: BaseException) -> str:
    """One sentence: what raised, the error, and the line it came from.

    Example:
        >>> describe_failure("Game.step", KeyError("sword"))
        "Game.step raised KeyError: 'sword'"
    """
    try:
        message = str(error)
    except Exception:
        message = ""
    sentence = f"{name} raised {type(error).__name__}" + (f": {message[:500]}" if message else "")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return sentence
    code = trace.tb_frame.f_code
    return f"{sentence} (in {code.co_name}, {code.co_filename.rpartition('/')[2]} line {trace.tb_lineno})"
