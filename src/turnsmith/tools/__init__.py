"""Tools that a model can call, and the parsers that read tool calls out of its completions."""

from __future__ import annotations

from turnsmith.importing import face

__getattr__ = face(
    __name__,
    "ToolDefinition Tool ToolRegistry ActionParser JSONActionParser ReActActionParser FunctionCallingParser "
    "MultiTurnManager EnvironmentStepTool",
)
