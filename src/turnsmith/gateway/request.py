"""What the APIs have in common: a request for one turn, its reply, and why a request is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from turnsmith.errors import TurnsmithError


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call in an assistant message, with its arguments as JSON text.

    Example:
        >>> RequestedCall("add", '{"b": 2,  "a": 1}').key == RequestedCall("add", '{"a":1,"b":2}', "call_7").key
        True
    """

    name: str
    arguments: str = "{}"
    id: str = ""

    @property
    def key(self) -> tuple[str, bytes]:
        """Equal for calls that differ only in their id, or in how their arguments are written as JSON."""
        return self.name, _canonical(self.arguments)

    def parsed_arguments(self) -> dict[str, Any]:
        """The arguments as an object; empty if their text is not a JSON object."""
        try:
            value = orjson.loads(self.arguments or "{}")
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation.

    Example:
        >>> sent = ChatMessage("assistant", "Let me look.", (RequestedCall("look", '{"at":"sky"}', "call_1"),))
        >>> sent.key == ChatMessage("assistant", "Let me look. ", (RequestedCall("look", '{"at": "sky"}'),)).key
        True
    """

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str = ""
    calls: tuple[RequestedCall, ...] = ()
    call_id: str = ""
    """The call that a tool result answers."""
    key: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    """Messages are compared by this: agents drop white space, ids and unknown fields, and reformat arguments."""

    def __post_init__(self) -> None:
        key: tuple[Any, ...] = (self.role, self.content)
        if self.role == "assistant":
            key = (self.role, self.content.strip(), tuple([call.key for call in self.calls]) if self.calls else ())
        object.__setattr__(self, "key", key)  # once: every later request repeats the message


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for the model's next turn, whichever API it came by."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """In OpenAI's format."""
    model: str = ""
    stream: bool = False
    stream_usage: bool = True
    """Whether a stream ends with the number of tokens; chat completions leave it out unless asked."""
    max_tokens: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict[str, float])
    """`temperature`, `top_p` and `top_k`, if the agent set them."""
    stop: tuple[str, ...] = ()
    """The turn ends before any of these texts."""
    unenforced: tuple[str, ...] = ()
    """Settings that are not applied, because they would change the distribution that is sampled from."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """One turn of the model, as the agent sees it."""

    id: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[RequestedCall, ...] = ()
    is_cut: bool = False
    """Whether the turn ended because it ran out of tokens."""
    stop: str = ""
    """The stop text that ended it, if one did."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    created: int = 0

    @property
    def message(self) -> ChatMessage:
        """The reply as a message of the conversation."""
        return ChatMessage("assistant", self.text, self.calls)


class Refusal(TurnsmithError):
    """A request that gets no turn; each dialect writes it in its own form.

    Example:
        >>> str(Refusal("The body is not JSON."))
        'The body is not JSON.'
        >>> Refusal("Gone.", status=404).status
        404
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        """The field of the request that is wrong."""


class ContextTooLong(Refusal):
    """The conversation does not fit. Agents recognise this error by its code or text, and shorten their history."""

    def __init__(self, tokens: int, limit: int, advice: str = "") -> None:
        super().__init__(f"{tokens} tokens are more than the {limit} that fit. {advice}".strip())
        self.tokens, self.limit, self.advice = tokens, limit, advice


def refuse_unless_default(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse settings that change the distribution that is sampled from, because its log-probs are not exact.

    Example:
        >>> refuse_unless_default({"n": 2}, {"n": 1})
        Traceback (most recent call last):
        turnsmith.gateway.request.Refusal: `n` is not supported: the gateway samples one turn a request, with exact \
log-probs of the model's own distribution. Leave it out.
    """
    for name, default in defaults.items():
        value = settings.get(name)
        if value not in (None, default, [], {}):
            raise Refusal(
                f"`{name}` is not supported: the gateway samples one turn a request, with exact log-probs of the "
                "model's own distribution. Leave it out.",
                param=name,
            )


def _canonical(arguments: str) -> bytes:
    try:
        return orjson.dumps(orjson.loads(arguments or "{}"), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):  # not JSON, or integers that orjson cannot write
        return arguments.encode("utf-8", "replace")
