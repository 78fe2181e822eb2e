"""A model served to the vendors' own clients: every conversation is one of its own, with the tokens as sampled."""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.unit.rollout import agents
from tests.unit.rollout.recorded import Recorded, check_tokens
from transformers import AutoTokenizer

from turnsmith.gateway import server as gateway_server
from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelRequest, Refusal
from turnsmith.gateway.server import ModelServer
from turnsmith.gateway.turns import SampledTurn
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout import conversations as module
from turnsmith.rollout.conversations import Conversations
from turnsmith.rollout.spec import Limits

KEY = "a key of at least 16 characters"
CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
LOOKS = [CALL, f"Let me look again. {CALL}", CALL + CALL, "I saw it."]
SDK_AGENTS = [agents.chat_agent, agents.responses_agent, agents.anthropic_agent]


@dataclass
class Served:
    conversations: Conversations
    server: ModelServer
    url: str
    key: str = KEY

    @property
    def anthropic_url(self) -> str:
        return self.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


@asynccontextmanager
async def served(engine: Engine, chat: Chat, **settings: Any) -> AsyncGenerator[Served]:
    settings = {"limits": Limits(prompt_tokens=4096), "sampling": Sampling(max_tokens=8), "idle": 60.0} | settings
    conversations = Conversations("mine", engine, chat, parser=None, **settings)
    listener = socket.create_server(("127.0.0.1", 0))
    server = ModelServer(conversations, KEY)
    await server.start(listener)
    try:
        yield Served(conversations, server, f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
    finally:
        await server.stop()


def conversations_of(engine: Engine, chat: Chat, **settings: Any) -> Conversations:
    settings = {"limits": Limits(), "sampling": Sampling(), "parser": None, "idle": 60.0} | settings
    return Conversations("mine", engine, chat, **settings)


async def run_agent(agent: Any, task: dict[str, Any], model: Served) -> float:
    if inspect.iscoroutinefunction(agent):
        return await agent(task, model)
    return await asyncio.to_thread(agent, task, model)


async def talk(model: Served, *texts: str, key: str = KEY, **settings: Any) -> list[Any]:
    """A conversation of a client of its own; returns all messages."""
    messages: list[Any] = []
    async with openai.AsyncOpenAI(base_url=model.url, api_key=key, max_retries=0) as client:
        for text in texts:
            messages.append({"role": "user", "content": text})
            reply = await client.chat.completions.create(model="m", messages=messages, **settings)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
    return messages


@pytest.mark.parametrize("agent", SDK_AGENTS, ids=lambda agent: agent.__name__)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_each_api_with_tools_is_one_conversation(chat: Chat, agent: Any, stream: bool):
    engine = Recorded(ScriptedEngine(LOOKS, chat, log_prob=-1.0))
    async with served(engine, chat, sampling=Sampling(max_tokens=200)) as model:
        assert await run_agent(agent, {"question": "What?", "stream": stream}, model) == 4.0
        (conversation,) = model.conversations.take_ended(every=True)
    assert conversation.actions == LOOKS
    assert [info["continuation"] for info in conversation.infos] == ["opened", "bridged", "bridged", "bridged"]
    assert (conversation.outcome, conversation.branches) == ("completed", [])
    check_tokens(conversation, engine)


async def test_a_turn_ends_before_the_text_that_a_client_names(chat: Chat):
    engine = ScriptedEngine(["one END two STOP three", "and END"], chat, log_prob=-1.0)
    async with served(engine, chat, sampling=Sampling(max_tokens=200)) as model:
        said = await talk(model, "Hi", "Go on", stop=["STOP", "END"])
        assert [said[1]["content"], said[3]["content"]] == ["one ", "and "]
        (conversation,) = model.conversations.take_ended(every=True)
        async with anthropic.AsyncAnthropic(base_url=model.anthropic_url, api_key=KEY) as client:
            asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
            answer = await client.messages.create(**asked, stop_sequences=["END"])
        assert (answer.stop_reason, answer.stop_sequence, answer.content[0].text) == ("stop_sequence", "END", "one ")
    assert [action.rstrip() for action in conversation.actions] == ["one END", "and END"]  # what follows is forgotten
    assert [info["continuation"] for info in conversation.infos] == ["opened", "bridged"]


async def test_whoever_watches_the_server_needs_no_key(chat: Chat):
    async with served(ScriptedEngine(["a"], chat), chat) as model, httpx.AsyncClient() as client:
        assert (await client.get(f"{model.anthropic_url}/health")).status_code == 200
        assert (await client.get(f"{model.url}/models")).status_code == 401


@pytest.mark.parametrize("agent", SDK_AGENTS, ids=lambda agent: agent.__name__)
async def test_a_real_engine_is_recorded_token_for_token(
    tiny: TransformersEngine, chat: Chat, agent: Any, tmp_path: Path
):
    engine = Recorded(tiny)
    async with served(engine, chat) as model:
        await run_agent(agent, {"question": "What?", "stream": True}, model)
        ended = model.conversations.take_ended(every=True)
    run = RunFolder.create(tmp_path, "serve")
    write_episodes(run, 1, ended)
    (conversation,) = read_episodes(run)
    assert [conversation] == ended
    assert conversation.num_turns == agents.TURNS
    check_tokens(conversation, engine)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["same answers", "other answers"])
async def test_conversations_of_clients_that_say_the_same_do_not_mix(
    tiny: TransformersEngine, chat: Chat, temperature: float
):
    engine = Recorded(tiny)
    async with served(engine, chat) as model:
        said = await asyncio.gather(*(talk(model, "Hi", "And?", "So?", temperature=temperature) for _ in range(3)))
        ended = model.conversations.take_ended(every=True)
    assert [conversation.num_turns for conversation in ended] == [3, 3, 3]
    assert all(conversation.branches == [] for conversation in ended)
    assert sorted(map(str, said)) == sorted(str(conversation.messages) for conversation in ended)
    for conversation in ended:
        check_tokens(conversation, engine)


async def test_of_conversations_that_read_alike_one_whose_answer_arrived_goes_on(chat: Chat):
    conversations = conversations_of(ScriptedEngine(["a", "b"], chat), chat)
    opening = ChatMessage("user", "Hi")
    for is_delivered in (False, True):
        served = await conversations.take_turn(ModelRequest((opening,)))
        served.turn.is_delivered = is_delivered
    history = (opening, served.reply.message, ChatMessage("user", "And?"))
    (await conversations.take_turn(ModelRequest(history))).turn.is_delivered = True
    (conversation,) = conversations.take_ended(every=True)
    assert (conversation.episode_id, conversation.actions) == ("conversation-2", ["a", "b"])


async def test_an_answer_that_is_asked_for_again_is_a_branch(tiny: TransformersEngine, chat: Chat):
    engine = Recorded(tiny)
    async with served(engine, chat) as model:
        messages = await talk(model, "Hi", "And?")
        async with openai.AsyncOpenAI(base_url=model.url, api_key=KEY) as client:
            await client.chat.completions.create(model="m", messages=messages[:-1])
        (conversation,) = model.conversations.take_ended(every=True)
    assert (conversation.num_turns, len(conversation.branches)) == (3, 1)
    check_tokens(conversation, engine)


async def test_the_sampling_parameters_of_the_client_apply(chat: Chat):
    engine = Recorded(ScriptedEngine(["a"], chat))
    plan = Sampling(max_tokens=8, temperature=0.5, top_k=7)
    async with served(engine, chat, sampling=plan) as model:
        await talk(model, "one")
        await talk(model, "two", temperature=0.25, top_p=0.5, max_tokens=100, extra_body={"top_k": 3})
        await talk(model, "three", temperature=1e-40, extra_body={"top_k": 10**12})
        wrongs: list[dict[str, Any]] = [{"temperature": -1}, {"top_p": 0}, {"n": 2}]
        for wrong in wrongs:
            with pytest.raises(openai.BadRequestError):
                await talk(model, "four", **wrong)
        ended = model.conversations.take_ended(every=True)
    used = [(one.temperature, one.top_p, one.top_k, one.max_tokens) for _, _, one in engine.calls]
    assert used == [(0.5, 1.0, 7, 8), (0.25, 0.5, 3, 100), (0.0, 1.0, -1, 8)]
    assert ended[1].infos[0]["sampling"] == {"temperature": 0.25, "top_p": 0.5, "top_k": 3}
    assert len(ended) == 3


@pytest.mark.parametrize(
    ("wishes", "used"),
    [
        ({"temperature": 0.0}, (0.0, 1.0, -1)),
        ({"temperature": 0.0099}, (0.0, 1.0, -1)),
        ({"temperature": 0.01}, (0.01, 1.0, -1)),
        ({"top_p": 1.0}, (0.5, 1.0, -1)),
        ({"top_k": 0}, (0.5, 1.0, -1)),
        ({"top_k": 1}, (0.5, 1.0, 1)),
        ({"top_k": 10**6 - 1}, (0.5, 1.0, 10**6 - 1)),
        ({"top_k": 10**6}, (0.5, 1.0, -1)),
    ],
)
async def test_sampling_that_engines_cannot_do_is_what_was_meant_by_it(
    chat: Chat, wishes: dict[str, float], used: tuple[float, float, int]
):
    engine = Recorded(ScriptedEngine(["a"], chat))
    conversations = conversations_of(engine, chat, sampling=Sampling(temperature=0.5))
    await conversations.take_turn(ModelRequest((ChatMessage("user", "Hi"),), sampling=wishes))
    (asked,) = (sampling for _, _, sampling in engine.calls)
    assert (asked.temperature, asked.top_p, asked.top_k) == used


@pytest.mark.parametrize(("name", "value"), [("temperature", -0.01), ("top_p", 0.0), ("top_p", 1.01)])
async def test_sampling_that_makes_no_sense_is_refused_by_its_name(chat: Chat, name: str, value: float):
    conversations = conversations_of(ScriptedEngine(["a"], chat), chat)
    with pytest.raises(Refusal, match=f"`{name}` must be") as refused:
        await conversations.take_turn(ModelRequest((ChatMessage("user", "Hi"),), sampling={name: value}))
    assert refused.value.param == name
    with pytest.raises(Refusal, match="no rewards here") as refused:
        conversations.add_reward(1.0, None)
    assert refused.value.status == 404


@pytest.mark.parametrize(("wanted", "allowed"), [(None, 8), (3, 3), (0, 1), (500, 30)])
async def test_a_turn_gets_what_the_client_asks_for_within_what_is_left(chat: Chat, wanted: int | None, allowed: int):
    engine = Recorded(ScriptedEngine(["a"], chat))
    request = ModelRequest((ChatMessage("user", "Hi"),), max_tokens=wanted)
    length = conversations_of(engine, chat).count_tokens(request)
    limits = Limits(prompt_tokens=length, tokens=30)
    await conversations_of(engine, chat, limits=limits, sampling=Sampling(max_tokens=8)).take_turn(request)
    assert [sampling.max_tokens for _, _, sampling in engine.calls] == [allowed]


async def test_a_prompt_that_leaves_one_token_fits_and_one_more_does_not(chat: Chat):
    request = ModelRequest((ChatMessage("user", "Hi"),))
    length = conversations_of(ScriptedEngine([], chat), chat).count_tokens(request)
    for left in (1, 0):
        engine = Recorded(ScriptedEngine([[chat.close_id]], chat))
        conversations = conversations_of(engine, chat, limits=Limits(prompt_tokens=1, tokens=length - 1 + left))
        if left:
            await conversations.take_turn(request)
        else:
            with pytest.raises(ContextTooLong, match=f"{length} tokens are more than the {length} that fit"):
                await conversations.take_turn(request)
        assert len(engine.calls) == left


async def test_a_conversation_is_recorded_with_its_wishes_times_and_name(chat: Chat):
    conversations = conversations_of(ScriptedEngine(["a", "b"], chat), chat)
    asked = {"sampling": {"top_p": 0.5}, "unenforced": ("tool_choice",)}
    for text in ("Hi", "Ho"):
        settings: Any = asked if text == "Hi" else {}
        turn = await conversations.take_turn(ModelRequest((ChatMessage("user", text),), **settings))
        turn.turn.is_delivered = True
        assert turn.reply.model == "mine"
    await conversations.take_turn(ModelRequest((ChatMessage("user", "never delivered"),)))
    first, second = conversations.take_ended(every=True)
    assert (first.infos[0]["sampling"], first.infos[0]["not_applied"]) == ({"top_p": 0.5}, {"tool_choice": True})
    assert not {"sampling", "not_applied"} & second.infos[0].keys()
    assert (first.episode_id, first.group_id, second.episode_id) == ("conversation-1",) * 2 + ("conversation-2",)
    assert 0 < first.seconds < 60
    assert (first.outcome, first.error) == ("completed", "")


async def test_a_wrong_key_is_an_error_of_each_api(chat: Chat):
    engine = Recorded(ScriptedEngine(["a"], chat))
    async with served(engine, chat) as model:
        for key in ("wrong", KEY[:-1], KEY + "x", "ключ"):
            if key.isascii():
                with pytest.raises(openai.AuthenticationError, match="API key"):
                    await talk(model, "Hi", key=key)
                with pytest.raises(anthropic.AuthenticationError, match="API key"):
                    await agents.anthropic_agent({"question": "Hi"}, replace(model, key=key))
            async with httpx.AsyncClient(base_url=model.url) as client:
                for route in ("/chat/completions", "/responses", "/messages", "/reward", "/nowhere"):
                    response = await client.post(route, headers=[(b"X-Api-Key", key.encode())], json={})
                    assert response.status_code == 401
                assert (await client.get("/models")).status_code == 401
                assert (await client.get("/models", headers={"X-Api-Key": KEY})).json()["data"][0]["id"] == "mine"
    assert engine.calls == []


async def test_idle_conversations_end_and_are_forgotten(chat: Chat):
    async with served(ScriptedEngine(["a", "b"], chat), chat, idle=0.2) as model:
        messages = await talk(model, "Hi", "And?")
        assert model.conversations.take_ended() == []
        await asyncio.sleep(0.3)
        fresh = await talk(model, "Hello")
        (first,) = model.conversations.take_ended()
        assert [message["content"] for message in first.messages] == ["Hi", "a", "And?", "b"]
        async with openai.AsyncOpenAI(base_url=model.url, api_key=KEY) as client:
            goes_on: Any = [*messages, {"role": "user", "content": "Still there?"}]
            await client.chat.completions.create(model="m", messages=goes_on)
        others = model.conversations.take_ended(every=True)
    assert [one.infos[0]["continuation"] for one in others] == ["opened", "edited"]
    assert len(fresh) == 2


@pytest.mark.nightly
async def test_memory_does_not_grow_with_conversations(chat: Chat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway_server, "_MOST_REMEMBERED", 4)
    monkeypatch.setattr(module, "_MOST_LIVE", 6)

    def turns() -> int:
        gc.collect()
        return sum(isinstance(thing, SampledTurn) for thing in gc.get_objects())

    before = turns()
    async with served(ScriptedEngine(["a", "b"], chat), chat) as model:
        ended = 0
        for number in range(40):
            await talk(model, f"{number}", "And?")
            ended += len(model.conversations.take_ended())
        # Those that are alive, those that may be repeated, and what the last requests still hold.
        assert 0 < turns() - before <= 2 * (6 + 4) + 2
        assert ended == 34
        ended += len(model.conversations.take_ended(every=True))
    assert ended == 40


async def test_a_conversation_that_is_too_long_is_told_so_and_recorded(chat: Chat):
    async with served(ScriptedEngine(["a"], chat), chat, limits=Limits(prompt_tokens=40, tokens=20)) as model:
        with pytest.raises(openai.BadRequestError) as caught:
            await talk(model, "Hi", "x" * 30)
        (conversation,) = model.conversations.take_ended(every=True)
    assert caught.value.code == "context_length_exceeded"
    assert (conversation.num_turns, conversation.outcome) == (1, "token_limit")


class Slow:
    """Answers the first turn at once, and no other."""

    def __init__(self, inner: Engine) -> None:
        self.inner, self.calls = inner, 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        self.calls += 1
        if self.calls > 1:
            await asyncio.sleep(3600)
        return await self.inner.generate(prompt_ids, sampling, session=session)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_ends_tells_who_waits_and_keeps_what_was_said(chat: Chat, stream: bool):
    engine = Slow(ScriptedEngine(["a", "b"], chat))
    async with served(engine, chat) as model:
        messages: Any = [*await talk(model, "Hi"), {"role": "user", "content": "And?"}]
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=model.url, headers=headers, timeout=20) as client:
            body = {"messages": messages, "stream": stream}
            waiting = asyncio.create_task(client.post("/chat/completions", json=body))
            while engine.calls < 2:
                await asyncio.sleep(0.01)
            await model.server.stop()
            response = await waiting
        assert (response.status_code, response.json()["error"]["message"]) == (503, "The server is stopping.")
        (conversation,) = model.conversations.take_ended(every=True)
    assert conversation.actions == ["a"]


async def test_the_answer_to_one_client_is_not_repeated_to_another(tiny: TransformersEngine, chat: Chat):
    engine = Recorded(tiny)
    async with served(engine, chat) as model:
        await talk(model, "Hi")
        await talk(model, "Hi", extra_headers={"x-stainless-retry-count": "1"})
        assert len(model.conversations.take_ended(every=True)) == len(engine.calls) == 2


async def test_beyond_the_most_at_once_the_oldest_ends(chat: Chat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MOST_LIVE", 2)
    async with served(ScriptedEngine(["a", "b", "c"], chat), chat) as model:
        for text in ("one", "two", "three"):
            await talk(model, text)
        assert [one.messages[0]["content"] for one in model.conversations.take_ended()] == ["one"]


async def test_a_conversation_does_not_end_while_a_turn_is_sampled(chat: Chat):
    may_answer, engine = asyncio.Event(), ScriptedEngine(["one", "two"], chat, log_prob=-1.0)

    class Slow:
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str = "") -> Generation:
            await may_answer.wait()
            return await engine.generate(prompt_ids, sampling, session=session)

    conversations = conversations_of(Slow(), chat, sampling=Sampling(max_tokens=20), idle=0.0)
    may_answer.set()
    first = await conversations.take_turn(ModelRequest((ChatMessage("user", "Hi"),)))
    first.turn.is_delivered = True
    may_answer.clear()
    history = (ChatMessage("user", "Hi"), first.reply.message, ChatMessage("user", "Go on"))
    second = asyncio.create_task(conversations.take_turn(ModelRequest(history)))
    await asyncio.sleep(0)
    assert conversations.take_ended() == []
    may_answer.set()
    (await second).turn.is_delivered = True
    assert [len(one.turns) for one in conversations.take_ended()] == [2]
