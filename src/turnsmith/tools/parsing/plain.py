"""No calls at all: what the model says is what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.text import replace_surrogates
from turnsmith.tools.parsing.base import ActionParser, ParsedAction, too_large

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["PlainTextParser"]


class PlainTextParser(ActionParser):
    """Takes the text as it stands; finds no calls, whatever the text looks like.

    Example:
        >>> PlainTextParser().parse("move north")
        ParsedAction(text='move north', calls=[], problem=None)
    """

    def parse(self, text: str) -> ParsedAction:
        """The text, and nothing else."""
        if len(text) > self.max_chars:
            return too_large(len(text), self.max_chars)
        return ParsedAction(replace_surrogates(text))

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Nothing: there is no format to teach."""
        return ""
