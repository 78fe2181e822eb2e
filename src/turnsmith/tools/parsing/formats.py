"""The ways a model can write its tool calls, by the names that settings use."""

from __future__ import annotations

from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.tools.parsing import (
    ActionParser,
    FunctionCallingParser,
    JSONActionParser,
    NativeParser,
    PlainTextParser,
    ReActActionParser,
)

FORMATS = ("function_calling", "json", "react", "native", "text")
"""`native` is the model family's own; `text` offers no tools: all that the model says goes to the environment."""


def parser_for(name: str, tokenizer: Any = None) -> ActionParser:
    """The parser of a format; `native` needs the model's tokenizer.

    Example:
        >>> type(parser_for("react")).__name__
        'ReActActionParser'
    """
    if name == "native":
        return NativeParser(tokenizer)
    parsers = {
        "function_calling": FunctionCallingParser,
        "json": JSONActionParser,
        "react": ReActActionParser,
        "text": PlainTextParser,
    }
    if name not in parsers:
        raise ConfigError(f"inference.tool_format={name!r} is unknown: use one of {', '.join(FORMATS)}.")
    return parsers[name]()
