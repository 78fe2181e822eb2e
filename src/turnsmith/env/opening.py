"""Reads what `reset` returned: the first observation as a text, or a whole conversation as a list of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, cast

from turnsmith.errors import EnvironmentFailure
from turnsmith.tools.step_result import MOST_TEXT, read_text

Speaker = Literal["user", "assistant"]
_READ_KEYS = ("role", "content")


@dataclass(frozen=True, slots=True)
class Opening:
    """How an episode begins."""

    observation: str
    """The user's last message, which the model answers first."""
    system: str = ""
    examples: tuple[tuple[Speaker, str], ...] = ()
    """The role and the text of each message between these two. None of them is trained."""


def read_opening(name: str, returned: Any) -> Opening:
    """Read an observation, `(observation, info)`, or messages `[{"role": ..., "content": ...}, ...]` as either.

    A system message may come first, and messages of the user and the assistant before the user's last one.

    Example:
        >>> read_opening("Game.reset", ("a door", {}))
        Opening(observation='a door', system='', examples=())
        >>> shown = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
        >>> read_opening("Sums.reset", [*shown, {"role": "user", "content": "2 + 3"}])
        Opening(observation='2 + 3', system='', examples=(('user', '1 + 1'), ('assistant', '2')))
        >>> read_opening("Sums.reset", shown)
        Traceback (most recent call last):
        turnsmith.errors.EnvironmentFailure: Sums.reset returned messages of which the last is the assistant's; it \
must be the user's, because the model answers it.
    """
    if not _are_messages(returned) and isinstance(returned, (tuple, list)):
        items = cast("Sequence[Any]", returned)
        returned = items[0] if len(items) == 2 else items  # Gymnasium: (observation, info)
    if not _are_messages(returned):
        if not isinstance(returned, str):
            raise EnvironmentFailure(
                f"{name} returned an observation of type {type(returned).__name__}; it must be a string, or a list of "
                'messages: [{"role": "user", "content": ...}].'
            )
        return Opening(read_text(name, returned))
    messages = [_read_message(name, message) for message in returned]
    system = messages.pop(0)[1] if messages[0][0] == "system" else ""
    speakers = [role for role, _ in messages]
    if "system" in speakers:
        raise EnvironmentFailure(f"{name} returned a system message that is not the first.")
    if not messages or speakers[-1] != "user":
        last = "assistant's" if messages else "system's"
        raise EnvironmentFailure(
            f"{name} returned messages of which the last is the {last}; it must be the user's, because the model "
            "answers it."
        )
    if sum(len(text) for _, text in messages) > MOST_TEXT:
        raise EnvironmentFailure(f"{name} returned messages of more than {MOST_TEXT:,} characters.")
    *examples, (_, observation) = cast("list[tuple[Speaker, str]]", messages)
    return Opening(observation, system, tuple(examples))


def _are_messages(returned: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    if not isinstance(returned, (tuple, list)) or not returned:
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in cast("Sequence[Any]", returned))


def _read_message(name: str, message: Mapping[str, Any]) -> tuple[str, str]:
    role = "system" if message["role"] == "developer" else message["role"]
    if role not in ("system", "user", "assistant"):
        raise EnvironmentFailure(
            f"{name} returned a message with the role {role!r:.80}; an episode begins with messages of the system, the "
            "user and the assistant."
        )
    if more := [str(key) for key, value in message.items() if key not in _READ_KEYS and value]:
        raise EnvironmentFailure(
            f"{name} returned a message with {', '.join(more)}, which no model would see: an opening has texts only."
        )
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        content = "".join(_read_part(name, part) for part in cast("Sequence[Any]", content))
    if not isinstance(content, str):
        raise EnvironmentFailure(
            f"{name} returned a message whose content is of type {type(content).__name__}; it must be a string."
        )
    return role, read_text(name, content)


def _read_part(name: str, part: Any) -> Any:
    kind = cast("Mapping[str, Any]", part).get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    if kind not in ("text", "input_text"):
        raise EnvironmentFailure(f"{name} returned a message with a part of type {kind}; models here read texts only.")
    text = cast("Mapping[str, Any]", part).get("text")
    if not isinstance(text, str):
        raise EnvironmentFailure(f"{name} returned a message with a part of type text that has no text.")
    return text
