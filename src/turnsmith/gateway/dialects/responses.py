"""OpenAI's Responses: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
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
    unenforced_settings,
)
from turnsmith.gateway.dialects.chat_completions import openai_error
from turnsmith.gateway.request import (
    ChatMessage,
    ModelReply,
    ModelRequest,
    Refusal,
    RequestedCall,
    refuse_unless_default,
)


class _InputText(msgspec.Struct, tag="input_text", tag_field="type"):
    text: str


class _OutputText(msgspec.Struct, tag="output_text", tag_field="type"):
    text: str


class _PlainText(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class _RefusedText(msgspec.Struct, tag="refusal", tag_field="type"):
    refusal: str


_Parts = str | list[_InputText | _OutputText | _PlainText | _RefusedText] | None


class _Item(msgspec.Struct, tag="message", tag_field="type"):
    role: str
    content: _Parts = None


class _FunctionCall(msgspec.Struct, tag="function_call", tag_field="type"):
    name: str
    arguments: str = "{}"
    call_id: str = ""


class _CallOutput(msgspec.Struct, tag="function_call_output", tag_field="type"):
    call_id: str = ""
    output: _Parts = None


class _Reasoning(msgspec.Struct, tag="reasoning", tag_field="type"):
    id: str | None = None


_AnyItem = _Item | _FunctionCall | _CallOutput | _Reasoning


class _FunctionTool(msgspec.Struct, tag="function", tag_field="type"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _ResponsesBody(msgspec.Struct):
    input: msgspec.Raw
    model: str = ""
    instructions: str | None = None
    tools: list[_FunctionTool] | None = None
    tool_choice: Any = None
    stream: bool | None = False
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    top_logprobs: Any = None


class Responses:
    """OpenAI's Responses. Agents must send the whole conversation, because the server keeps nothing by id.

    Example:
        >>> request = Responses().read(b'{"input": "Hi", "instructions": "Be kind."}')
        >>> [(message.role, message.content) for message in request.messages]
        [('system', 'Be kind.'), ('user', 'Hi')]
    """

    name = "responses"

    def read(self, body: bytes, known: KnownMessages | None = None) -> ModelRequest:
        """The request in a body."""
        fields = decode_body(body, _ResponsesBody)
        _refuse_unsupported(fields)
        messages = [ChatMessage("system", fields.instructions)] if fields.instructions else []
        if bytes(fields.input).lstrip().startswith(b'"'):
            messages.append(ChatMessage("user", decode_body(bytes(fields.input), str)))
        else:
            messages += read_messages(fields.input, _messages, "input", known)
        return ModelRequest(
            messages=check_messages(messages),
            tools=tuple(function_tool(tool.name, tool.description, tool.parameters) for tool in fields.tools or ()),
            model=fields.model,
            stream=bool(fields.stream),
            max_tokens=fields.max_output_tokens,
            sampling=sampling_settings(temperature=fields.temperature, top_p=fields.top_p),
            unenforced=unenforced_settings(body, _ResponsesBody, tool_choice=fields.tool_choice),
        )

    def write(self, reply: ModelReply, request: ModelRequest) -> bytes:
        """The body that answers a request."""
        return orjson.dumps(_response(reply, request, [item for item, _ in _output(reply)], _status(reply)))

    def events(self, reply: ModelReply, request: ModelRequest) -> Iterator[bytes]:
        """The same as server-sent events."""
        numbers = count()

        def event(kind: str, **data: Any) -> bytes:
            return sse({"type": kind, "sequence_number": next(numbers), **data}, kind)

        output = _output(reply)
        yield event("response.created", response=_response(reply, request, [], "in_progress"))
        yield event("response.in_progress", response=_response(reply, request, [], "in_progress"))
        for index, (item, begun) in enumerate(output):
            place = {"output_index": index, "item_id": item["id"]}
            yield event("response.output_item.added", output_index=index, item=begun)
            if item["type"] == "message":
                part, where = item["content"][0], {**place, "content_index": 0}
                yield event("response.content_part.added", **where, part={**part, "text": ""})
                yield event("response.output_text.delta", **where, delta=part["text"], logprobs=[])
                yield event("response.output_text.done", **where, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **where, part=part)
            elif item["type"] == "function_call":
                yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
                done = {"name": item["name"], "arguments": item["arguments"]}
                yield event("response.function_call_arguments.done", **place, **done)
            yield event("response.output_item.done", output_index=index, item=item)
        end = "response.incomplete" if _status(reply) == "incomplete" else "response.completed"
        yield event(end, response=_response(reply, request, [item for item, _ in output], _status(reply)))

    def write_error(self, refusal: Refusal) -> bytes:
        """The body of an error."""
        return orjson.dumps({"error": openai_error(refusal)})

    def error_event(self, refusal: Refusal) -> bytes:
        """An error in a stream that has begun."""
        error = openai_error(refusal)
        kept = {name: error[name] for name in ("code", "message", "param")}
        # OpenAI documents no `error` here, but its own client raises only if there is one.
        return sse({"type": "error", "sequence_number": 0, **kept, "error": error}, "error")


def _refuse_unsupported(fields: _ResponsesBody) -> None:
    kept = {"previous_response_id": fields.previous_response_id, "conversation": fields.conversation}
    for name, value in {**kept, "prompt": fields.prompt}.items():
        if value is not None:
            raise Refusal(f"`{name}` is not supported: send the whole conversation in `input`.", param=name)
    values = {"background": fields.background, "top_logprobs": fields.top_logprobs}
    values["text.format"] = (fields.text or {}).get("format")
    refuse_unless_default(values, {"background": False, "top_logprobs": 0, "text.format": {"type": "text"}})


def _messages(data: bytes) -> Iterator[ChatMessage]:
    raw = msgspec.json.decode(data)
    typed = {"type": "message", **raw} if isinstance(raw, dict) and "role" in raw else raw
    item: Any = msgspec.convert(typed, _AnyItem)
    if isinstance(item, _FunctionCall):
        yield ChatMessage("assistant", "", (RequestedCall(item.name, item.arguments, item.call_id),))
    elif isinstance(item, _CallOutput):
        yield ChatMessage("tool", _text(item.output), call_id=item.call_id)
    elif isinstance(item, _Item):
        role = {"developer": "system"}.get(item.role, item.role)
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"the role {item.role[:40]!r} is unknown")
        yield ChatMessage(role, _text(item.content))
    # Reasoning items yield nothing: the model's reasoning is in its sampled tokens.


def _text(parts: str | list[Any] | None) -> str:
    if parts is None or isinstance(parts, str):
        return parts or ""
    return "".join(part.refusal if isinstance(part, _RefusedText) else part.text for part in parts)


def _output(reply: ModelReply) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The items of a turn: each when complete, and as it starts in a stream."""
    items: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if reply.reasoning:
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        item: dict[str, Any] = {"type": "reasoning", "id": f"rs_{reply.id}", "summary": [], "content": content}
        items.append((item, {**item, "content": []}))
    status = _status(reply)
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        item = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": status, "content": [part]}
        items.append((item, {**item, "status": "in_progress", "content": []}))
    for number, call in enumerate(reply.calls):
        item = {"type": "function_call", "id": f"fc_{reply.id}_{number}", "call_id": call.id, "name": call.name}
        item |= {"arguments": call.arguments, "status": "completed"}
        items.append((item, {**item, "arguments": "", "status": "in_progress"}))
    return items


def _status(reply: ModelReply) -> str:
    return "incomplete" if reply.is_cut and not reply.calls else "completed"


def _response(reply: ModelReply, request: ModelRequest, output: list[Any], status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": request.sampling.get("temperature"),
        "top_p": request.sampling.get("top_p"),
        "tool_choice": "auto",
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in request.tools],
        "usage": None if status == "in_progress" else usage,
    }
