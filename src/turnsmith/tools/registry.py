"""A set of tools, and the one way to call them, which never fails, whatever the model or the tool does."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from turnsmith.concurrency.loop_thread import run_blocking
from turnsmith.errors import (
    ConfigError,
    EnvironmentFailure,
    InternalError,
    Overloaded,
    ToolError,
    describe_failure,
    internal_error,
    is_ours,
)
from turnsmith.tools.arguments import BadArguments, check_arguments
from turnsmith.tools.definition import ToolCall, ToolDefinition, ToolResult
from turnsmith.tools.error_messages import check_schema, unknown_tool
from turnsmith.tools.execution import ToolTimeout, run_tool
from turnsmith.tools.output import Encode, UnsupportedResult, to_text, truncate
from turnsmith.tools.tool import Tool, tool

FAILED = "The tool failed. This is not your mistake; try something else."
TIMED_OUT = "The tool took too long and was stopped."
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A registered tool, with what every call needs of it looked up once."""

    tool: Tool
    definition: ToolDefinition
    validate: Callable[[dict[str, Any]], dict[str, Any]]
    function: Callable[..., Any]
    is_async: bool


class ToolRegistry:
    """The tools of an episode, an environment or a whole run.

    Example:
        >>> @tool
        ... def divide(a: float, b: float) -> float:
        ...     '''Divide a by b.'''
        ...     if b == 0:
        ...         raise ToolError("b must not be zero.")
        ...     return a / b
        >>> registry = ToolRegistry([divide])
        >>> registry.execute_tool("divide", a=1, b=2)
        (True, 0.5)
        >>> registry.execute_tool("divide", a=1, b=0)
        (False, 'b must not be zero.')
        >>> registry.execute_tool("divde", a=1, b=0)
        (False, 'There is no tool divde. Did you mean divide?')
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._entries: dict[str, _Entry] = {}
        for each in tools:
            self.register(each)

    def register(self, new: Tool | Callable[..., Any]) -> Tool:
        """Add a tool, or a typed function as one. Two tools cannot share a name."""
        if isinstance(new, type):
            raise ConfigError(f"Register an instance, not the class: register({new.__name__}()).")
        registered = cast(object, new if isinstance(new, Tool) else tool(new))
        if not isinstance(registered, Tool):  # a marked method
            raise ConfigError("Register an environment's methods with tools_of(environment).")
        definition = registered.definition
        if not _NAME.fullmatch(definition.name):
            raise ConfigError(
                f"{definition.name!r} cannot be a tool's name: use up to 64 letters, digits, '_', '-' and '.', "
                "starting with a letter or '_'."
            )
        if definition.name in self._entries:
            raise ConfigError(f"There is already a tool named {definition.name!r}; rename one of them.")
        function = registered.function
        self._entries[definition.name] = _Entry(
            registered, definition, _validator(registered, definition), function, inspect.iscoroutinefunction(function)
        )
        return registered

    def remove(self, name: str) -> None:
        """Remove a tool; does nothing if there is none of that name."""
        self._entries.pop(name, None)

    @property
    def names(self) -> list[str]:
        """The names of all tools, in the order they were registered."""
        return list(self._entries)

    def definitions(self) -> list[ToolDefinition]:
        """The definitions of all tools, for the prompt."""
        return [entry.definition for entry in self._entries.values()]

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry.tool

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Tool]:
        return iter([entry.tool for entry in self._entries.values()])

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def execute_tool(self, name: str, /, **arguments: Any) -> tuple[bool, Any]:
        """Call a tool from synchronous code; returns whether it succeeded, and its value or an error message."""
        result = run_blocking(self.call(ToolCall(name, arguments)))
        return result.ok, result.value if result.ok and not result.cut else result.text

    async def call(self, call: ToolCall, *, episode_id: str = "", count: Encode | None = None) -> ToolResult:
        """Check the arguments, run the tool within its limits, and store the result in `call.result`.

        Raises nothing but `Overloaded`, if the call did not get its turn, the failure of an environment whose step the
        call was, `InternalError` for a bug of turnsmith, and cancellation from outside.

        Args:
            call: The model's call.
            episode_id: What `current_episode()` returns inside the tool.
            count: A tokenizer's `encode`, to measure the output with; without it four characters count as a token.
        """
        began = time.perf_counter()
        try:
            result = await self._call(call, episode_id, count)
        except (Overloaded, EnvironmentFailure, InternalError):
            raise
        except Exception as error:  # a validator of the user or the tokenizer raised
            if is_ours(error):
                raise internal_error(error) from error
            result = ToolResult(False, FAILED, failure=describe_failure(f"The call to {str(call.name)[:80]}", error))
        result.seconds = time.perf_counter() - began
        call.result = result
        return result

    async def _call(self, call: ToolCall, episode_id: str, count: Encode | None) -> ToolResult:
        name = cast(object, call.name)  # a user's parser may let anything through
        entry = self._entries.get(name) if isinstance(name, str) else None
        if entry is None:
            return ToolResult(False, unknown_tool(call.name, self._entries))
        try:
            arguments = entry.validate(check_arguments(call.arguments))
        except BadArguments as error:
            return ToolResult(False, str(error))
        limit, thread = entry.tool.time_limit, entry.tool.thread
        seconds = limit + entry.tool.grace
        outcome = await run_tool(
            entry.function, arguments, is_async=entry.is_async, limit=seconds, episode_id=episode_id, thread=thread
        )
        error = outcome.error
        if error is None:
            return _result(entry, outcome.value, count)
        is_failed_step = entry.tool.is_step and isinstance(error, EnvironmentFailure)
        if is_failed_step or isinstance(error, Overloaded):  # neither the model nor a tool caused it
            raise error
        if isinstance(error, ToolError):
            text, is_cut = truncate(str(error), entry.tool.max_output_tokens, count)
            return ToolResult(False, text, cut=is_cut)
        if isinstance(error, ToolTimeout):
            return ToolResult(False, TIMED_OUT, failure=f"{name} took longer than {limit:g} seconds.")
        if is_ours(error):
            raise internal_error(error) from error
        # The worker process of a remote environment has already described the error.
        is_described = isinstance(error, EnvironmentFailure)
        failure = str(error) if is_described else describe_failure(entry.definition.name, error)
        return ToolResult(False, FAILED, failure=failure)


def _result(entry: _Entry, value: Any, count: Encode | None) -> ToolResult:
    step, value = (value, value.observation) if entry.tool.is_step else (None, value)
    try:
        text, is_cut = truncate(to_text(value), entry.tool.max_output_tokens, count)
    except UnsupportedResult as error:
        return ToolResult(False, FAILED, failure=f"{entry.definition.name}: {error}.")
    ok = step is None or not step.info.get("invalid_action")
    return ToolResult(ok, text, value=None if is_cut else value, cut=is_cut, step=step)


def _validator(registered: Tool, definition: ToolDefinition) -> Callable[[dict[str, Any]], dict[str, Any]]:
    signature = registered.signature
    if signature.is_open and definition.parameters is not signature.parameters:
        # `execute(self, **arguments)` with a hand-written schema: there are no type hints to check against.
        return lambda arguments: check_schema(arguments, definition.parameters)
    return signature.check
