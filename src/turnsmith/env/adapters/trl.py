"""Classes that were written for TRL's `environment_factory`: `reset`, public methods as tools, and `get_reward`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.adapters.scorers import score
from turnsmith.errors import ToolError
from turnsmith.tools.step_result import StepResult
from turnsmith.tools.tool import FunctionTool, tool

_NO_TOOLS = ("reset", "get_reward")


class TRLEnvironment(QuestionAnswer):
    """An object with `reset(**row)`, public methods that the model calls, and perhaps `get_reward()`.

    The episode ends with the first turn that calls no tool. Its reward is that of `get_reward`, and of the functions in
    `reward`, which may take `environments`. The text of a tool's exception is shown to the model, as in TRL.

    Args:
        made: The object.
        config: The settings; `prompt`, `answer` and `reward` are those of `QuestionAnswer`.

    Example:
        >>> class Counter:
        ...     def reset(self, **kwargs):
        ...         self.count = 0
        ...
        ...     def add(self, number: int) -> str:
        ...         '''Add a number.'''
        ...         self.count += number
        ...         return str(self.count)
        ...
        ...     def get_reward(self) -> float:
        ...         return float(self.count == 3)
        >>> environment = TRLEnvironment(Counter())
        >>> environment.reset(task={"prompt": "Make 3."})
        'Make 3.'
        >>> environment.made.add(3), environment.step("Done.").reward
        ('3', 1.0)
    """

    def __init__(self, made: Any, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        own = EnvironmentConfig() if config is None else config
        super().__init__(own, own.get("prompt", ""), own.get("answer", ""), own.get("reward", ()))
        self.made = made
        self._tools_of_server = [_as_in_trl(method) for method in tool_methods_of(made)]

    def reset(self, task: Mapping[str, Any] | None = None) -> Any:
        """The row's question, with what the object's own `reset` returns after it."""
        row = dict(task or {})
        opening = super().reset({"prompt": "", **row})
        said = self.made.reset(**row)
        if isinstance(said, list):  # parts, in OpenAI's format
            said = "".join(str(part.get("text") or "") for part in said)
        if isinstance(opening, str):
            return opening + (said or "")
        last = opening[-1]
        return [*opening[:-1], {**last, "content": last["content"] + (said or "")}]

    def step(self, action: str) -> Any:
        """End the episode, and score it."""
        own = self.made.get_reward() if hasattr(self.made, "get_reward") else None
        return self._later(own, action) if inspect.isawaitable(own) else self._score(own, action)

    def solve(self) -> None:
        """Nobody knows which calls solve it."""

    async def _later(self, own: Awaitable[float], action: str) -> StepResult:
        scored = self._score(await own, action)
        return await scored if inspect.isawaitable(scored) else scored

    def _score(self, own: float | None, action: str) -> Any:
        if not self.scorers:
            return StepResult("", 0.0 if own is None else float(own), terminated=True)
        result = score(self.scorers, replace(self.scored, response=action))
        return self._added(result, own or 0.0) if inspect.isawaitable(result) else _plus(result, own or 0.0)

    async def _added(self, result: Awaitable[StepResult], own: float) -> StepResult:
        return _plus(await result, own)


def _plus(result: StepResult, own: float) -> StepResult:
    result.reward += own
    return result


def tool_methods_of(made: Any) -> list[Any]:
    """The public methods that TRL offers the model, in its order."""
    names = [name for name, _ in inspect.getmembers(type(made), predicate=inspect.isfunction)]
    return [getattr(made, name) for name in names if not name.startswith("_") and name not in _NO_TOOLS]


def _as_in_trl(method: Any) -> FunctionTool[..., Any]:
    """A method as a tool whose exceptions the model reads."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            returned = method(*args, **kwargs)
        except Exception as error:
            raise ToolError(str(error) or type(error).__name__) from error
        return _awaited(returned) if inspect.isawaitable(returned) else returned

    call.__qualname__ = call.__name__  # it is no method of a class any more
    return tool(call)


async def _awaited(returned: Awaitable[Any]) -> Any:
    try:
        return await returned
    except Exception as error:
        raise ToolError(str(error) or type(error).__name__) from error
