"""The parsers that `inference.tool_format` names."""

from __future__ import annotations

import inspect
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.importing import import_object
from turnsmith.tools.parsing import (
    ActionParser,
    FunctionCallingParser,
    JSONActionParser,
    NativeParser,
    PlainTextParser,
    ReActActionParser,
)

_BUILT_IN: dict[str, type[ActionParser]] = {
    "function_calling": FunctionCallingParser,
    "json": JSONActionParser,
    "react": ReActActionParser,
    "native": NativeParser,
    "text": PlainTextParser,
}


def parser_for(name: str, tokenizer: Any = None) -> ActionParser:
    """The parser of a format, or the user's own: `module:name` of an `ActionParser` or of a subclass.

    A subclass is called with the model's tokenizer if its constructor has a parameter `tokenizer`, else with nothing.

    Example:
        >>> type(parser_for("react")).__name__
        'ReActActionParser'
    """
    parser = find_parser(name)
    if isinstance(parser, ActionParser):
        return parser
    return parser(**{"tokenizer": tokenizer} if "tokenizer" in inspect.signature(parser).parameters else {})


def find_parser(name: str) -> type[ActionParser] | ActionParser:
    """The parser that a name stands for, before it is given a tokenizer.

    Raises:
        ConfigError: It cannot be imported, or is not a parser.

    Example:
        >>> find_parser("pathlib:Path")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: inference.tool_format='pathlib:Path' is not a parser: name a subclass of \
turnsmith.ActionParser with `parse` and `instructions`, or an instance of one.
    """
    parser = _BUILT_IN[name] if name in _BUILT_IN else import_object(name)
    is_class = isinstance(parser, type) and issubclass(parser, ActionParser) and not inspect.isabstract(parser)
    if is_class or isinstance(parser, ActionParser):
        return parser
    raise ConfigError(
        f"inference.tool_format={name!r} is not a parser: name a subclass of turnsmith.ActionParser with `parse` and "
        "`instructions`, or an instance of one."
    )
