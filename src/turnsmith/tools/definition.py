"""Plain data about tools: the definition of a tool, a call, and the result of a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from turnsmith.tools.step_result import StepResult


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """Name, description and argument schema of a tool, as the model sees them.

    Example:
        >>> ToolDefinition("look", "Look around.").as_openai()["function"]["parameters"]
        {'type': 'object', 'properties': {}}
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    """A JSON Schema of type `object` for the arguments."""

    def as_openai(self) -> dict[str, Any]:
        """The definition as chat templates and OpenAI-compatible servers expect it."""
        parameters = self.parameters or {"type": "object", "properties": {}}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(slots=True)
class ToolResult:
    """The result of one call.

    Example:
        >>> ToolResult(ok=False, text="The tool failed.", failure="refund raised KeyError: 7").ok
        False
    """

    ok: bool
    """Whether the call succeeded. False without a `failure` means that the model made a mistake."""
    text: str
    """The result as the model sees it."""
    value: Any = None
    """The tool's return value; None if its text was truncated, so that no episode keeps megabytes in memory."""
    seconds: float = 0.0
    failure: str = ""
    """What went wrong inside the tool. Recorded, but never shown to the model."""
    cut: bool = False
    """Whether `text` was truncated to the tool's output limit."""
    step: StepResult | None = None
    """What the call did in the environment, if it was a step."""


@dataclass(slots=True)
class ToolCall:
    """One tool call by the model.

    Example:
        >>> ToolCall("add", {"a": 1, "b": 2}).name
        'add'
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""
    """The call id that the model wrote, where its format has one."""
    result: ToolResult | None = None
    """None until the call has run."""
