"""Each dialect against the vendor's own SDK, and against anything that may be sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnsmith.gateway.dialects import AnthropicMessages, APIDialect, ChatCompletions, Responses
from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelReply, ModelRequest, Refusal, RequestedCall

DIALECTS: list[APIDialect] = [ChatCompletions(), Responses(), AnthropicMessages()]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

names = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_-]{0,12}\Z")
plain = st.text(st.characters(codec="utf-8"), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    lambda name, arguments, number: RequestedCall(name, orjson.dumps(arguments).decode(), f"call_{number}"),
    names,
    st.dictionaries(plain, values, max_size=3),
    st.integers(0, 999),
)
replies = st.builds(
    ModelReply,
    id=names,
    text=plain,
    reasoning=plain,
    calls=st.lists(calls, max_size=3, unique_by=lambda call: call.id).map(tuple),
    is_cut=st.booleans(),
    prompt_tokens=st.integers(0, 10**6),
    completion_tokens=st.integers(0, 10**6),
    model=st.just("tiny"),
    created=st.just(1_700_000_000),
)
TOOL: Any = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}


class Wire:
    """Answers what an SDK sends with one reply, through a dialect; keeps the requests."""

    def __init__(self, dialect: APIDialect, answer: ModelReply | Refusal, status: int = 0) -> None:
        self.dialect, self.answer, self.status = dialect, answer, status
        self.requests: list[ModelRequest] = []

    def respond(self, body: bytes) -> tuple[int, bytes, str]:
        if isinstance(self.answer, Refusal):
            if self.status == 200:
                return 200, b": waiting\n\n" + self.dialect.error_event(self.answer), "text/event-stream"
            return self.answer.status, self.dialect.write_error(self.answer), "application/json"
        asked = self.dialect.read(body)
        self.requests.append(asked)
        if asked.stream:
            return 200, b"".join(self.dialect.events(self.answer, asked)), "text/event-stream"
        return 200, self.dialect.write(self.answer, asked), "application/json"


def client_of(library: Any, make: Any, **settings: Any) -> tuple[Any, list[Wire]]:
    """An SDK's client that talks to the last wire of a list; making one takes 50 ms, so the tests share it."""
    wires: list[Wire] = []

    def handle(request: Any) -> Any:
        status, body, kind = wires[-1].respond(request.read())
        return library.Response(status, content=body, headers={"content-type": kind})

    http = library.Client(transport=library.MockTransport(handle))
    return make(**settings, api_key="k", http_client=http, max_retries=0), wires


OPENAI, OPENAI_WIRES = client_of(httpx, openai.OpenAI, base_url="http://gateway/v1")
CLAUDE, CLAUDE_WIRES = client_of(httpx2, anthropic.Anthropic, base_url="http://gateway")


def openai_client(wire: Wire) -> openai.OpenAI:
    OPENAI_WIRES.append(wire)
    return OPENAI


def anthropic_client(wire: Wire) -> anthropic.Anthropic:
    CLAUDE_WIRES.append(wire)
    return CLAUDE


def with_chat(wire: Wire, *, stream: bool) -> None:
    """Two requests of an agent on chat completions: a question, and its history with tool results."""
    create = openai_client(wire).chat.completions
    history: list[Any] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    if stream:
        with create.stream(model="tiny", messages=history, tools=[TOOL]) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = create.create(model="tiny", messages=history, tools=[TOOL]).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls or ()]
    history += [message.model_dump(exclude_none=True), *results, {"role": "user", "content": "Go on"}]
    create.create(model="tiny", messages=history)


def with_responses(wire: Wire, *, stream: bool) -> None:
    client = openai_client(wire).responses
    tool = {"type": "function", **TOOL["function"]}
    asked: dict[str, Any] = {"model": "tiny", "instructions": "Be kind.", "tools": [tool]}
    history: list[Any] = [{"role": "user", "content": "Hi"}]
    if stream:
        with client.stream(**asked, input=history) as events:
            for event in events:  # an unfinished response never becomes a final one
                if event.type in ("response.completed", "response.incomplete"):
                    output = event.response.output
    else:
        output = client.create(**asked, input=history).output
    history += [item.model_dump(exclude_none=True) for item in output]
    done = [item.call_id for item in output if item.type == "function_call"]
    history += [{"type": "function_call_output", "call_id": call_id, "output": "ok"} for call_id in done]
    client.create(**asked, input=[*history, {"role": "user", "content": "Go on"}])


def with_anthropic(wire: Wire, *, stream: bool) -> None:
    client = anthropic_client(wire).messages
    tool = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
    asked: dict[str, Any] = {"model": "tiny", "system": "Be kind.", "max_tokens": 9, "tools": [tool]}
    history: list[Any] = [{"role": "user", "content": "Hi"}]
    if stream:
        with client.stream(**asked, messages=history) as events:
            message = events.get_final_message()
    else:
        message = client.create(**asked, messages=history)
    history.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
    done = [block.id for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use, "content": "ok"} for use in done]
    client.create(**asked, messages=[*history, {"role": "user", "content": [*results, text("Go on")]}])


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


AGENTS: list[Callable[..., None]] = [with_chat, with_responses, with_anthropic]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("dialect", "agent"), list(zip(DIALECTS, AGENTS, strict=True)), ids=["chat", "responses", "claude"]
)
@SLOW
@given(reply=replies)
def test_what_was_handed_out_comes_back_equal(
    dialect: APIDialect, agent: Callable[..., None], stream: bool, reply: ModelReply
):
    if stream and agent is with_chat:  # OpenAI's client raises at the end of a stream that was cut
        reply = replace(reply, is_cut=False)
    wire = Wire(dialect, reply)
    agent(wire, stream=stream)
    first, second = wire.requests
    assert first.stream == stream
    assert [message.key for message in first.messages] == [("system", "Be kind."), ("user", "Hi")]
    assert [tool["function"]["name"] for tool in first.tools] == ["look"]
    assert second.messages[:2] == first.messages
    assert second.messages[2].key == reply.message.key
    results, last = second.messages[3:-1], second.messages[-1]
    assert [(result.role, result.content) for result in results] == [("tool", "ok")] * len(reply.calls)
    assert [result.call_id for result in results] == [call.id for call in reply.calls]
    assert last.key == ("user", "Go on")


@each_dialect
def test_usage_and_end_are_those_of_the_turn(dialect: APIDialect):
    reply = ModelReply("a", "cut of", is_cut=True, prompt_tokens=5, completion_tokens=3, model="tiny")
    request = ModelRequest((ChatMessage("user", "Hi"),))
    whole = json.loads(dialect.write(reply, request))
    usage = whole["usage"]
    assert {5, 3} <= {value for value in usage.values() if isinstance(value, int)}
    ends = {"chat completions": "length", "responses": "incomplete", "messages": "max_tokens"}
    assert ends[dialect.name] in json.dumps(whole)
    assert ends[dialect.name].encode() in b"".join(dialect.events(reply, request))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain, inner, max_size=4),
    max_leaves=8,
)
FIELDS = ["role", "content", "type", "text", "tool_calls", "id", "function", "name", "arguments", "input", "output"]
WORDS = ["user", "assistant", "tool", "system", "text", "tool_use", "tool_result", "function_call", "message", "{}"]
shaped = st.recursive(
    st.sampled_from(WORDS) | json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)
bodies = st.dictionaries(
    st.sampled_from(["messages", "input", "tools", "system", "n", "stream", "temperature", "max_tokens", "model"]),
    st.lists(shaped, max_size=3) | shaped,
    max_size=5,
).map(lambda body: json.dumps(body).encode("utf-8", "surrogatepass"))


@each_dialect
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies | st.binary(max_size=60))
def test_a_body_is_read_or_refused(dialect: APIDialect, body: bytes):
    try:
        request = dialect.read(body)
    except Refusal as refusal:
        request, error = None, json.loads(dialect.write_error(refusal))["error"]
    if request is None:
        assert error["message"]
        return
    assert request.messages[-1].role != "assistant"
    assert all(isinstance(message.content, str) for message in request.messages)


@each_dialect
@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"messages": 1, "input": 1}', b"\xff", b'{"input": [[]]}'])
def test_a_hostile_body_is_refused(dialect: APIDialect, body: bytes):
    with pytest.raises(Refusal):
        dialect.read(body)


REFUSED: Iterable[tuple[APIDialect, dict[str, Any]]] = [
    *((DIALECTS[0], setting) for setting in ({"n": 2}, {"logit_bias": {"5": 1}}, {"logprobs": True})),
    (DIALECTS[0], {"response_format": {"type": "json_object"}}),
    (DIALECTS[0], {"presence_penalty": 0.5}),
    (DIALECTS[0], {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    (DIALECTS[1], {"previous_response_id": "resp_1"}),
    (DIALECTS[1], {"text": {"format": {"type": "json_schema", "schema": {}}}}),
    (DIALECTS[1], {"tools": [{"type": "web_search"}]}),
    (DIALECTS[2], {"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]}),
]


@pytest.mark.parametrize(("dialect", "setting"), REFUSED, ids=lambda value: getattr(value, "name", str(value))[:40])
def test_what_has_no_exact_log_probs_is_refused(dialect: APIDialect, setting: dict[str, Any]):
    user = [{"role": "user", "content": "Hi"}]
    body = {"messages": user, "input": user, "n": 1, "stop_sequences": [], "text": {"format": {"type": "text"}}}
    dialect.read(json.dumps(body).encode())
    with pytest.raises(Refusal):
        dialect.read(json.dumps({**body, **setting}).encode())


def test_settings_at_their_defaults_are_taken():
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    usual = {"n": 1, "logprobs": False, "top_logprobs": 0, "presence_penalty": 0, "frequency_penalty": 0.0}
    usual |= {"response_format": {"type": "text"}, "logit_bias": None}
    assert DIALECTS[0].read(json.dumps(body | usual).encode()).unenforced == ()


@each_dialect
def test_what_nobody_reads_is_noted_or_refused(dialect: APIDialect):
    def asked(**more: Any) -> ModelRequest:
        field = "input" if dialect.name == "responses" else "messages"
        return dialect.read(json.dumps({field: [{"role": "user", "content": "Hi"}], **more}).encode())

    known = {"parallel_tool_calls": True, "user": "me", "store": False, "metadata": {"a": "b"}, "truncation": "auto"}
    assert asked(**known, chat_template_kwargs={}).unenforced == ()
    wishes = {"seed": 1, "chat_template_kwargs": {"enable_thinking": False}, "parallel_tool_calls": False}
    assert set(asked(**wishes).unenforced) == {*wishes}
    assert len(asked(**{f"x{number}" * 50: 1 for number in range(100)}).unenforced) == 32
    for setting in ({"repetition_penalty": 1.1}, {"min_p": 0.1}, {"guided_json": {"type": "object"}}):
        with pytest.raises(Refusal, match="is not supported: the gateway samples one turn a request"):
            asked(**setting)
    assert asked(repetition_penalty=1.0, min_p=0, guided_json=None).unenforced == ()


def test_each_sdk_knows_that_the_context_is_too_long():
    too_long = ContextTooLong(5000, 4096, "Raise the limit.")
    for dialect in DIALECTS[:2]:
        with pytest.raises(openai.BadRequestError) as caught:
            openai_client(Wire(dialect, too_long)).chat.completions.create(model="m", messages=[])
        assert caught.value.code == "context_length_exceeded"
        assert "maximum context length is 4096" in str(caught.value)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 5000 tokens > 4096 maximum"):
        anthropic_client(Wire(DIALECTS[2], too_long)).messages.create(model="m", messages=[], max_tokens=1)


def test_each_sdk_knows_the_kind_of_an_error():
    kinds = {401: "AuthenticationError", 404: "NotFoundError", 500: "InternalServerError"}
    for status, kind in kinds.items():
        refusal = Refusal("No.", status=status)
        with pytest.raises(getattr(openai, kind), match="No"):
            openai_client(Wire(DIALECTS[0], refusal)).chat.completions.create(model="m", messages=[])
        with pytest.raises(getattr(anthropic, kind), match="No"):
            anthropic_client(Wire(DIALECTS[2], refusal)).messages.create(model="m", messages=[], max_tokens=1)


def test_an_error_in_a_stream_reaches_the_agent():
    died = Refusal("The engine died.", status=500)
    chat = openai_client(Wire(DIALECTS[0], died, status=200)).chat.completions
    with pytest.raises(openai.APIError, match="engine died"):
        list(chat.create(model="m", messages=[], stream=True))
    responses = openai_client(Wire(DIALECTS[1], died, status=200)).responses
    with pytest.raises(openai.APIError, match="engine died"):
        list(responses.create(model="m", input="x", stream=True))
    messages = anthropic_client(Wire(DIALECTS[2], died, status=200)).messages
    with pytest.raises(anthropic.APIError, match="engine died"):
        list(messages.create(model="m", messages=[], max_tokens=1, stream=True))
