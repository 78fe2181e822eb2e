"""The parser for environments without tools: the whole completion is the action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.text import replace_surrogates
from turnsmith.tools.parsing.base import ActionParser, ParsedAction, too_large

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["PlainTextParser"]


class PlainTextParser(ActionParser):
    """Returns the text as it is, without calls, whatever it looks like.

    Example:
        >>> PlainTextParser().parse("move north")
        ParsedAction(text='move north', calls=[], problem=None)
    """

    def parse(self, text: str) -> ParsedAction:
        """Return the text. Never raises."""
        if len(text) > self.max_chars:
            return too_large(len(text), self.max_chars)
        return ParsedAction(replace_surrogates(text))

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Empty: there is no format to show."""
        return ""
