"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import orjson

from turnsmith.gateway.dialects.base import (
    KnownMessages,
    check_messages,
    decode_body,
    function_tool,
    read_messages,
    sampling_settings,
    sse,
    stop_texts,
    unenforced_settings,
)
from turnsmith.gateway.request import (
    ChatMessage,
    ContextTooLong,
    ModelReply,
    ModelRequest,
    Refusal,
    RequestedCall,
    refuse_unless_default,
)


class _Text(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class _RefusalPart(msgspec.Struct, tag="refusal", tag_field="type"):
    refusal: str


_Content = str | list[_Text] | None


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = "{}"


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = ""
    type: Literal["function"] = "function"


class _System(msgspec.Struct, tag="system", tag_field="role"):
    content: _Content


class _Developer(msgspec.Struct, tag="developer", tag_field="role"):
    content: _Content


class _User(msgspec.Struct, tag="user", tag_field="role"):
    content: _Content


class _Assistant(msgspec.Struct, tag="assistant", tag_field="role"):
    content: str | list[_Text | _RefusalPart] | None = None
    tool_calls: list[_Call] | None = None


class _ToolResult(msgspec.Struct, tag="tool", tag_field="role"):
    content: _Content
    tool_call_id: str | None = ""


class _ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    function: _ToolFunction
    type: Literal["function"] = "function"


_AnyMessage = _System | _Developer | _User | _Assistant | _ToolResult
_decoder = msgspec.json.Decoder(_AnyMessage)


class _Body(msgspec.Struct):
    messages: msgspec.Raw
    model: str = ""
    tools: list[_Tool] | None = None
    tool_choice: Any = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = None
    logit_bias: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None


_DEFAULTS = {
    "n": 1,
    "logit_bias": None,
    "logprobs": False,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "response_format": {"type": "text"},
    "functions": None,
    "function_call": None,
    "audio": None,
    "prediction": None,
    "web_search_options": None,
}


class ChatCompletions:
    """OpenAI's chat completions.

    Example:
        >>> request = ChatCompletions().read(b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}')
        >>> request.messages[0].content, request.sampling
        ('Hi', {'temperature': 0.0})
    """

    name = "chat completions"

    def read(self, body: bytes, known: KnownMessages | None = None) -> ModelRequest:
        """The request in a body."""
        fields = decode_body(body, _Body)
        refuse_unless_default({name: getattr(fields, name) for name in _DEFAULTS}, _DEFAULTS)
        max_tokens = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
        return ModelRequest(
            messages=check_messages(read_messages(fields.messages, _messages, "messages", known)),
            tools=tuple(
                function_tool(tool.function.name, tool.function.description, tool.function.parameters)
                for tool in fields.tools or ()
            ),
            model=fields.model,
            stream=bool(fields.stream),
            stream_usage=bool((fields.stream_options or {}).get("include_usage")),
            max_tokens=max_tokens,
            sampling=sampling_settings(temperature=fields.temperature, top_p=fields.top_p, top_k=fields.top_k),
            stop=stop_texts(fields.stop),
            unenforced=unenforced_settings(body, _Body, tool_choice=fields.tool_choice),
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> bytes:
        """The body that answers a request."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [_write_call(call) for call in reply.calls]
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(reply), "logprobs": None}
        return orjson.dumps({**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)})

    def events(self, reply: ModelReply, request: ModelRequest) -> Iterator[bytes]:
        """The same as server-sent events."""
        head = _head(reply, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return sse({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        if reply.reasoning:
            yield chunk({"reasoning_content": reply.reasoning})
        if reply.text:
            yield chunk({"content": reply.text})
        for index, call in enumerate(reply.calls):
            opened = {"index": index, "id": call.id, "type": "function"}
            yield chunk({"tool_calls": [{**opened, "function": {"name": call.name, "arguments": ""}}]})
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})
        yield chunk({}, _finish_reason(reply))
        if request.stream_usage:
            yield sse({**head, "choices": [], "usage": _usage(reply)})
        yield sse(b"[DONE]")

    def write_error(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        return orjson.dumps({"error": openai_error(refusal)})

    def error_event(self, refusal: Refusal) -> bytes:
        """An error in a stream that has begun."""
        return sse(self.write_error(refusal))


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """An error as OpenAI's APIs write it.

    Example:
        >>> openai_error(ContextTooLong(5000, 4096))["code"]
        'context_length_exceeded'
    """
    if isinstance(refusal, ContextTooLong):
        message = (
            f"This model's maximum context length is {refusal.limit} tokens. However, your messages resulted in "
            f"{refusal.tokens} tokens. {refusal.advice}".strip()
        )
        kind, code, param = "invalid_request_error", "context_length_exceeded", "messages"
    else:
        message, param = str(refusal), refusal.param
        kind = "invalid_request_error" if refusal.status < 500 else "server_error"
        code = {401: "invalid_api_key", 404: "not_found"}.get(refusal.status)
    return {"message": message, "type": kind, "param": param, "code": code}


def _messages(item: bytes) -> Iterator[ChatMessage]:
    message = _decoder.decode(item)
    content = _content(message.content)
    if isinstance(message, _Assistant):
        calls = tuple(
            RequestedCall(call.function.name, call.function.arguments or "{}", call.id or "")
            for call in message.tool_calls or ()
        )
        yield ChatMessage("assistant", content, calls)
    elif isinstance(message, _ToolResult):
        yield ChatMessage("tool", content, call_id=message.tool_call_id or "")
    else:
        yield ChatMessage("user" if isinstance(message, _User) else "system", content)


def _content(content: str | list[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, _Text) else part.refusal for part in content)


def _write_call(call: RequestedCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish_reason(reply: ModelReply) -> str:
    return "tool_calls" if reply.calls else "length" if reply.is_cut else "stop"


def _head(reply: ModelReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}


def _usage(reply: ModelReply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.completion_tokens
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": total,
    }
