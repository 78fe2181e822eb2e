"""Reads a chat template's fixed text off its renderings: what stands before, between and after the messages' texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.errors import ConfigError

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The fixed text around the texts of some messages."""

    pieces: tuple[str, ...]
    """One more than there are messages."""
    trims: tuple[tuple[bool, bool], ...]
    """For each message, whether the template strips white space left and right of its text."""


class Template:
    """A tokenizer's chat template, and whether it takes a system message.

    Refuses, when made, a template that changes what it has already rendered once the conversation goes on: the tokens
    the model has seen could then not be the template's. (Dropping the model's earlier *thinking* is fine: nothing is
    ever rendered again here.)
    """

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "The tokenizer has no chat template. Use the instruct version of the model, "
                "or set tokenizer.chat_template."
            )
        self._tokenizer = tokenizer
        self._settings = dict(settings)
        reason = self._unsteady(())
        if reason:
            raise ConfigError(
                f"The chat template cannot be used for episodes of many turns: {reason}. "
                "Give the tokenizer a template that only ever adds to what it rendered before."
            )
        self.takes_system = not self._unsteady(("system",))
        """Whether a system message can stand alone; otherwise it goes in front of the first user message."""

    def opening(self, roles: Sequence[str]) -> Scaffold:
        """The scaffold of a whole conversation, up to where the model starts to speak."""
        return self._scaffold(roles, 0)

    def bridge(self, roles: Sequence[str]) -> Scaffold:
        """The scaffold from the end of what the model said, over new messages, to where it speaks again."""
        return self._scaffold(("user", "assistant", *roles), 2)

    def place_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Move a system message into the first user message, for templates that have no place for it."""
        if self.takes_system or len(messages) < 2 or messages[0]["role"] != "system":
            return messages
        text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
        return [{"role": messages[1]["role"], "content": text}, *messages[2:]]

    def _scaffold(self, roles: Sequence[str], skip: int) -> Scaffold:
        marks = [_mark(place) for place in range(len(roles))]
        pieces = _split(self._render(roles, marks), marks)
        padded = _split(self._render(roles, [f" \n{mark}\n " for mark in marks]), marks)
        if pieces is None or padded is None:
            raise ConfigError(
                f"The chat template does not show each message once and in order, for the roles {list(roles)}."
            )
        trims = tuple(
            (not padded[place].endswith(" \n"), not padded[place + 1].startswith("\n ")) for place in range(len(roles))
        )
        return Scaffold(tuple(pieces[skip:]), trims[skip:])

    def _render(self, roles: Sequence[str], texts: Sequence[str]) -> str:
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._settings
            )
        except Exception as error:  # a template is a program, and raises what it likes
            raise ConfigError(
                f"The chat template refuses a conversation of the roles {list(roles)}: {error}"
            ) from error

    def _unsteady(self, lead: tuple[str, ...]) -> str:
        """Why the template is not steady while a conversation grows by two turns, or an empty string."""
        talks = [(*lead, "user", *("assistant", "user") * turns) for turns in range(3)]
        try:
            first, second, third = [self._scaffold(roles, 0).pieces for roles in talks]
        except ConfigError as error:
            return str(error).rstrip(".")
        start = len(lead) + 1
        if not (first[:start] == second[:start] == third[:start]):
            return "it changes the opening messages once more messages follow"
        # The last piece of the shorter talk is where the model starts to speak; in the longer one its text follows
        # there. Either may have a thinking block that the other lacks.
        for shorter, longer, place in ((first, second, start), (second, third, start + 2)):
            if not _starts_alike(shorter[place], longer[place]):
                return "it starts the model's turn in one way to generate and in another way in the history"
        if second[start + 1] != third[start + 1] or not _starts_alike(second[start + 2], third[start + 4]):
            return "it renders the same message differently, depending on where in the conversation it stands"
        return ""


def _starts_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _mark(place: int) -> str:
    # Letters only: nothing that a template strips, escapes or splits on.
    return f"TurnwiseText{chr(ord('A') + place // 26)}{chr(ord('A') + place % 26)}"


def _split(rendered: str, marks: Sequence[str]) -> list[str] | None:
    pieces: list[str] = []
    for mark in marks:
        before, found, rendered = rendered.partition(mark)
        if not found or mark in rendered:
            return None
        pieces.append(before)
    return [*pieces, rendered]
