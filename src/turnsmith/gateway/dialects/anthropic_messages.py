"""Anthropic's messages: `POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


class _TextBlock(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class _Thinking(msgspec.Struct, tag="thinking", tag_field="type"):
    thinking: str = ""


class _RedactedThinking(msgspec.Struct, tag="redacted_thinking", tag_field="type"):
    data: str = ""


class _ToolUse(msgspec.Struct, tag="tool_use", tag_field="type"):
    name: str
    id: str = ""
    input: dict[str, Any] = msgspec.field(default_factory=dict)


class _ToolResultBlock(msgspec.Struct, tag="tool_result", tag_field="type"):
    tool_use_id: str = ""
    content: str | list[_TextBlock] | None = None
    is_error: bool | None = None


class _UserMessage(msgspec.Struct, tag="user", tag_field="role"):
    content: str | list[_TextBlock | _ToolResultBlock]


class _AssistantMessage(msgspec.Struct, tag="assistant", tag_field="role"):
    content: str | list[_TextBlock | _Thinking | _RedactedThinking | _ToolUse]


class _SystemMessage(msgspec.Struct, tag="system", tag_field="role"):
    content: str | list[_TextBlock]


class _CustomTool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: str | None = None


_decoder = msgspec.json.Decoder(_UserMessage | _AssistantMessage | _SystemMessage)


class _MessagesBody(msgspec.Struct):
    messages: msgspec.Raw
    model: str = ""
    system: str | list[_TextBlock] | None = None
    tools: list[_CustomTool] | None = None
    tool_choice: dict[str, Any] | None = None
    max_tokens: int | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    output_format: Any = None
    mcp_servers: Any = None
    container: Any = None


_DEFAULTS: dict[str, Any] = {"output_format": None, "mcp_servers": None, "container": None}


class AnthropicMessages:
    """Anthropic's messages.

    Example:
        >>> body = b'{"messages": [{"role": "user", "content": "Hi"}], "system": "Be kind.", "max_tokens": 9}'
        >>> [message.role for message in AnthropicMessages().read(body).messages]
        ['system', 'user']
    """

    name = "messages"

    def read(self, body: bytes, known: KnownMessages | None = None) -> ModelRequest:
        """The request in a body."""
        fields = decode_body(body, _MessagesBody)
        refuse_unless_default({name: getattr(fields, name) for name in _DEFAULTS}, _DEFAULTS)
        for tool in fields.tools or ():
            if tool.type not in (None, "custom"):
                raise Refusal(f"The tool type `{tool.type}` runs on Anthropic's servers: send your own.", param="tools")
        messages = [ChatMessage("system", system)] if (system := _join(fields.system)) else []
        messages += read_messages(fields.messages, _messages, "messages", known)
        choice = (fields.tool_choice or {}).get("type")
        return ModelRequest(
            messages=check_messages(messages),
            tools=tuple(function_tool(tool.name, tool.description, tool.input_schema) for tool in fields.tools or ()),
            model=fields.model,
            stream=bool(fields.stream),
            max_tokens=fields.max_tokens,
            sampling=sampling_settings(temperature=fields.temperature, top_p=fields.top_p, top_k=fields.top_k),
            stop=stop_texts(fields.stop_sequences),
            unenforced=unenforced_settings(body, _MessagesBody, tool_choice=choice),
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> bytes:
        """The body that answers a request."""
        return orjson.dumps(_write_message(reply, _blocks(reply), _stop_reason(reply), reply.completion_tokens))

    def events(self, reply: ModelReply, request: ModelRequest) -> Iterator[bytes]:
        """The same as server-sent events."""
        yield _event("message_start", message=_write_message(reply, [], None, 0))
        for index, block in enumerate(_blocks(reply)):
            opened, deltas = _streamed(block)
            yield _event("content_block_start", index=index, content_block=opened)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        stop = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop or None}
        yield _event("message_delta", delta=stop, usage={"output_tokens": reply.completion_tokens})
        yield _event("message_stop")

    def write_error(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        message = str(refusal)
        if isinstance(refusal, ContextTooLong):
            message = f"prompt is too long: {refusal.tokens} tokens > {refusal.limit} maximum. {refusal.advice}".strip()
        kinds = {401: "authentication_error", 404: "not_found_error"}
        kind = kinds.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})

    def error_event(self, refusal: Refusal) -> bytes:
        """An error in a stream that has begun."""
        return sse(self.write_error(refusal), "error")


def write_token_count(tokens: int) -> bytes:
    """The answer to `count_tokens`.

    Example:
        >>> write_token_count(7)
        b'{"input_tokens":7}'
    """
    return orjson.dumps({"input_tokens": tokens})


def _messages(item: bytes) -> Iterator[ChatMessage]:
    """An API message may hold several tool results and text; each becomes a message to the model."""
    message = _decoder.decode(item)
    if isinstance(message, _SystemMessage):
        yield ChatMessage("system", _join(message.content))
    elif isinstance(message.content, str):
        yield ChatMessage("user" if isinstance(message, _UserMessage) else "assistant", message.content)
    elif isinstance(message, _AssistantMessage):
        calls = tuple(
            RequestedCall(block.name, orjson.dumps(block.input).decode(), block.id)
            for block in message.content
            if isinstance(block, _ToolUse)
        )
        yield ChatMessage("assistant", _join(message.content), calls)
    else:
        texts: list[_TextBlock] = []
        for block in message.content:
            if isinstance(block, _TextBlock):
                texts.append(block)
                continue
            if texts:
                yield ChatMessage("user", _join(texts))
                texts = []
            yield ChatMessage("tool", _join(block.content), call_id=block.tool_use_id)
        if texts or not message.content:
            yield ChatMessage("user", _join(texts))


def _join(content: str | list[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(block.text for block in content if isinstance(block, _TextBlock))


def _blocks(reply: ModelReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    uses = ({"id": call.id, "name": call.name, "input": call.parsed_arguments()} for call in reply.calls)
    return blocks + [{"type": "tool_use", **use} for use in uses]


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts in a stream, and its deltas."""
    if block["type"] == "tool_use":
        arguments = orjson.dumps(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    if block["type"] == "thinking":
        thinking = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": ""}, [thinking, {"type": "signature_delta", "signature": ""}]
    return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _write_message(reply: ModelReply, blocks: list[Any], stop: str | None, tokens: int) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": reply.stop if stop == "stop_sequence" else None,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": tokens},
    }


def _stop_reason(reply: ModelReply) -> str:
    if reply.calls:
        return "tool_use"
    return "stop_sequence" if reply.stop else "max_tokens" if reply.is_cut else "end_turn"


def _event(kind: str, **data: Any) -> bytes:
    return sse({"type": kind, **data}, kind)
