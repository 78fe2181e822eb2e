"""The interface of the dialects, and the functions that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec
import orjson

from turnsmith.gateway.request import (
    ChatMessage,
    ContextTooLong,
    ModelReply,
    ModelRequest,
    Refusal,
    refuse_unless_default,
)

Body = TypeVar("Body")


class APIDialect(Protocol):
    """One API, as pure functions."""

    name: str

    def read(self, body: bytes, known: KnownMessages | None = None) -> ModelRequest:
        """The request in a body; raises a `Refusal` if it cannot be read or asks for what is not supported.

        `known` are messages of earlier requests, in the same dialect.
        """
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


class KnownMessages:
    """The messages of earlier requests: agents always send their whole history, and only its end is new.

    Args:
        context: The most tokens that a conversation may have, and so also the most items.

    Example:
        >>> known, parse = KnownMessages(), lambda item: [ChatMessage("user", msgspec.json.decode(item))]
        >>> first = known.read(b'["Hi"]', parse, "messages")
        >>> again = known.read(b'["Hi", "you"]', parse, "messages")
        >>> again[0] is first[0], again[1].content
        (True, 'you')
    """

    most_arrays, most_bytes = 8, 8 * 2**20
    """Limits of what is kept for one episode, whose agent may have several conversations."""

    def __init__(self, context: float = math.inf) -> None:
        self._context = context
        self._arrays: list[tuple[bytes, list[ChatMessage], int]] = []
        """JSON arrays without their last bracket, the messages in them, and how many items they have."""

    def read(self, array: bytes, parse: Callable[[bytes], Iterable[ChatMessage]], field: str) -> list[ChatMessage]:
        """The messages in a JSON array; only its new items are parsed.

        Args:
            array: The array as valid JSON.
            parse: Reads one item; it may hold several messages, or none.
            field: The array's name in the request, for errors.
        """
        opened, messages, items = array[:-1], list[ChatMessage](), 0
        rest = array
        for place, (begun, known, known_items) in enumerate(self._arrays):
            # A comma follows, so the known part ends with a whole item here too.
            if opened.startswith(begun) and array[len(begun) : len(begun) + 1] == b",":
                messages, items, rest = known[:], known_items, b"[" + array[len(begun) + 1 :]
                del self._arrays[place]
                break
        new = msgspec.json.decode(rest, type=list[msgspec.Raw])
        if items + len(new) > self._context:
            advice = f"Each item of `{field}` has at least one token."
            raise ContextTooLong(items + len(new), int(self._context), advice)
        for item in new:
            messages += _parse(parse, bytes(item), f"{field}[{items}]")
            items += 1
        if len(opened) < self.most_bytes // self.most_arrays:
            self._arrays.insert(0, (opened, messages, items))
            del self._arrays[self.most_arrays :]
        return messages[:]


def _parse(parse: Callable[[bytes], Iterable[ChatMessage]], data: bytes, place: str) -> tuple[ChatMessage, ...]:
    try:
        return tuple(parse(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Refusal(f"The request is not valid: {place}: {reason}.", param=place) from error


def read_messages(
    array: msgspec.Raw, parse: Callable[[bytes], Iterable[ChatMessage]], field: str, known: KnownMessages | None
) -> list[ChatMessage]:
    """The messages in a part of a body, see `KnownMessages.read`; raises a `Refusal` if it is not an array.

    Example:
        >>> read_messages(msgspec.Raw(b"{}"), lambda item: [], "messages", None)
        Traceback (most recent call last):
        turnsmith.gateway.request.Refusal: The request is not valid: `messages` is not an array.
    """
    data = bytes(array).strip()
    if not data.startswith(b"["):
        raise Refusal(f"The request is not valid: `{field}` is not an array.", param=field)
    return (known or KnownMessages()).read(data, parse, field)


def sse(data: Any, event: str = "") -> bytes:
    r"""One server-sent event.

    Example:
        >>> sse({"a": 1}, "ping")
        b'event: ping\ndata: {"a":1}\n\n'
    """
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + (data if isinstance(data, bytes) else orjson.dumps(data)) + b"\n\n"


def check_messages(messages: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Check that the model has something to answer, and join consecutive assistant messages.

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


def unenforced_settings(body: bytes, kind: type[msgspec.Struct], **settings: Any) -> tuple[str, ...]:
    """The names of settings in a request that are not applied: these, and the fields that `kind` does not have.

    Raises:
        Refusal: One of them would change the distribution that is sampled from.

    Example:
        >>> class Known(msgspec.Struct):
        ...     model: str = ""
        >>> unenforced_settings(b'{"model": "m", "seed": 1, "user": "me", "min_p": 0}', Known, tool_choice="auto")
        ('seed',)
    """
    fields = decode_body(body, dict[str, msgspec.Raw])
    others = {name: msgspec.json.decode(fields[name]) for name in fields if name not in kind.__struct_fields__}
    defaults = _SAMPLED | {name: None for name in others if name.startswith(_GUIDED)}
    refuse_unless_default({name: value for name, value in others.items() if name in defaults}, defaults)
    rest = {name: value for name, value in others.items() if name not in _WITHOUT_EFFECT and name not in defaults}
    if rest.get("parallel_tool_calls") is True:
        del rest["parallel_tool_calls"]
    # Compared as text, because `1 in (None, True)` holds and a seed may be 1.
    names = [name[:80] for name, value in {**settings, **rest}.items() if repr(value) not in _DEFAULT_VALUES]
    return tuple(names[:_MOST_UNENFORCED])


_DEFAULT_VALUES = tuple(map(repr, (None, "auto", "disabled", "default", [], {}, ["text"])))
_MOST_UNENFORCED = 32
_SAMPLED = {
    "repetition_penalty": 1,
    "min_p": 0,
    "min_tokens": 0,
    "typical_p": 1,
    "length_penalty": 1,
    "best_of": 1,
    "use_beam_search": False,
    "ignore_eos": False,
    "bad_words": None,
    "stop_token_ids": None,
}
"""Fields of vLLM and SGLang that change the distribution, with their defaults."""
_GUIDED = ("guided_", "structured_outputs", "regex", "ebnf", "json_schema")
_WITHOUT_EFFECT = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "include", "stream_options", "moderation"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_control", "diagnostics"),
    *("inference_geo", "user_profile_id", "workspace_id"),
}
"""Fields about users, costs and storage, which do not affect what the model says."""


def stop_texts(stop: str | list[str] | None) -> tuple[str, ...]:
    """The texts that end a turn.

    Example:
        >>> stop_texts("END"), stop_texts(["", "END"]), stop_texts(None)
        (('END',), ('END',), ())
    """
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop or ()))


def sampling_settings(**parameters: float | None) -> dict[str, float]:
    """The sampling parameters that are set."""
    return {name: value for name, value in parameters.items() if value is not None}
