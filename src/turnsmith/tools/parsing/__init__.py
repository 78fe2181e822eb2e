"""Parsers: they extract tool calls from a completion, and write the instructions that teach the model the format.

- `JSONActionParser`: `{"tool": ..., "arguments": {...}}` anywhere in the text
- `ReActActionParser`: Thought, Action, Action Input, Final Answer
- `FunctionCallingParser`: `<tool_call>` tags and OpenAI's `tool_calls`
- `PlainTextParser`: no tool calls
- `NativeParser`: the model family's own format, parsed by the `renderers` package
"""

from turnsmith.tools.parsing.base import ActionParser, FormatProblem, ParsedAction, PlainTextParser, ProblemKind
from turnsmith.tools.parsing.function_calling import FunctionCallingParser
from turnsmith.tools.parsing.json_action import JSONActionParser
from turnsmith.tools.parsing.native import NativeParser, parse_turn
from turnsmith.tools.parsing.react import ReActActionParser

__all__ = [
    "ActionParser",
    "FormatProblem",
    "FunctionCallingParser",
    "JSONActionParser",
    "NativeParser",
    "ParsedAction",
    "PlainTextParser",
    "ProblemKind",
    "ReActActionParser",
    "parse_turn",
]
