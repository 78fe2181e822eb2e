"""What a dialect is, and what all of them need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import msgspec
import orjson

from turnsmith.gateway.request import ChatMessage, ModelReply, ModelRequest, Refusal

Body = TypeVar("Body")


class APIDialect(Protocol):
    """One API, as pure functions."""

    name: str

    def read(self, body: bytes) -> ModelRequest:
        """The request in a body; raises a `Refusal` if it cannot be read or asks for what is not supported."""
        ...

    def write(self, reply: ModelReply, request: ModelRequest) -> bytes:
        """The body that answers a request."""
        ...

    def events(self, reply: ModelReply, request: ModelRequest) -> Iterator[bytes]:
        """The same as server-sent events."""
        ...

    def write_error(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """An error in a stream that has begun."""
        ...


def decode_body(body: bytes, kind: type[Body]) -> Body:
    """Read a JSON body; raises a `Refusal` that names the wrong field.

    Example:
        >>> decode_body(b'{"a": 1}', dict[str, str])
        Traceback (most recent call last):
        turnsmith.gateway.request.Refusal: The request is not valid: Expected `str`, got `int` - at `$[...]`.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Refusal(f"The request is not valid: {reason}.") from error


def convert_item(item: Any, kind: type[Body], place: str) -> Body:
    """Read a part of a body that was decoded without a type."""
    try:
        return msgspec.convert(item, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Refusal(f"The request is not valid: {place}: {error}.", param=place) from error


def sse(data: Any, event: str = "") -> bytes:
    r"""One server-sent event.

    Example:
        >>> sse({"a": 1}, "ping")
        b'event: ping\ndata: {"a":1}\n\n'
    """
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + (data if isinstance(data, bytes) else orjson.dumps(data)) + b"\n\n"


def check_messages(messages: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages, if the model has something to answer; what the assistant said in a row is one turn.

    Example:
        >>> check_messages([ChatMessage("user", "Hi"), ChatMessage("assistant", "Hel")])
        Traceback (most recent call last):
        turnsmith.gateway.request.Refusal: The last message is the assistant's own: it must be a user message or a \
tool result.
    """
    if not any(message.role in ("user", "tool") for message in messages):
        raise Refusal("The conversation has no user message: send at least one.", param="messages")
    if messages[-1].role == "assistant":
        raise Refusal(
            "The last message is the assistant's own: it must be a user message or a tool result.", param="messages"
        )
    merged: list[ChatMessage] = []
    for message in messages:
        if message.role == "assistant" and merged and merged[-1].role == "assistant":
            turn = merged.pop()
            message = ChatMessage("assistant", turn.content + message.content, turn.calls + message.calls)
        merged.append(message)
    return tuple(merged)


def function_tool(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """A tool in the format of chat completions, which chat templates take."""
    function: dict[str, Any] = {
        "name": name,
        "description": description or "",
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def wishes(**given: Any) -> tuple[str, ...]:
    """The names of settings that were given and cannot be enforced."""
    return tuple(name for name, value in given.items() if value not in (None, "auto", True))


def sampling_settings(**given: float | None) -> dict[str, float]:
    """The sampling parameters that were given."""
    return {name: value for name, value in given.items() if value is not None}
