"""What a tool is called, what a model asked of it, and what came back. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """What a model is told about a tool.

    Example:
        >>> ToolDefinition("look", "Look around.").as_openai()["function"]["parameters"]
        {'type': 'object', 'properties': {}}
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    """The arguments, as a JSON Schema of type `object`."""

    def as_openai(self) -> dict[str, Any]:
        """The form that chat templates and OpenAI-like servers take."""
        parameters = self.parameters or {"type": "object", "properties": {}}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(slots=True)
class ToolResult:
    """How one call ended.

    Example:
        >>> ToolResult(ok=False, text="The tool failed.", failure="refund raised KeyError: 7").ok
        False
    """

    ok: bool
    """Whether the tool did what it was asked. False without a `failure` means that the model made a mistake."""
    text: str
    """What the model is told."""
    value: Any = None
    """What the tool returned; None when its text had to be cut, so that no episode holds on to megabytes."""
    seconds: float = 0.0
    failure: str = ""
    """What went wrong inside the tool. Recorded, never shown to the model."""
    cut: bool = False
    """Whether `text` was shortened to the tool's output limit."""


@dataclass(slots=True)
class ToolCall:
    """One call that a model asked for.

    Example:
        >>> ToolCall("add", {"a": 1, "b": 2}).name
        'add'
    """

    name: str
    arguments: dict[str, Any]
    id: str = ""
    """The model's own name for the call, where its format has one."""
    result: ToolResult | None = None
    """How it ended; None until it has run."""
