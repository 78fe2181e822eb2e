"""An agent that sends ever-new large histories: they cost no more than what fits, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import random
import time
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from tests.unit.rollout.recorded import Recorded
from transformers import AutoTokenizer

from turnsmith.concurrency.clocks import Clock
from turnsmith.gateway import server as gateway_server
from turnsmith.gateway.server import serve_episode
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.rollout.agent_session import AgentSession
from turnsmith.rollout.spec import Limits
from turnsmith.rollout.turn_rules import TurnRules
from turnsmith.trajectory import Outcome

MIB = 2**20
NEW = "(new)"
"""In each request its first occurrence is replaced by something new."""
LIMITS = Limits(turns=400, prompt_tokens=1024, tokens=2048)
PATHS = {"/chat/completions": "messages", "/responses": "input", "/messages": "messages"}
TOOL: dict[str, Any] = {"type": "function", "name": "look", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def chat(smollm2_folder: str) -> Chat:
    """Of a tokenizer that merges spaces, so that text of any length may be few tokens."""
    return Chat(AutoTokenizer.from_pretrained(smollm2_folder))


def session_of(chat: Chat, name: str) -> AgentSession:
    engine = Recorded(ScriptedEngine(["Yes.", "No.", "Perhaps."] * 100, chat))
    session = AgentSession(TurnRules.of(name, chat, limits=LIMITS, sampling=Sampling()), engine, Clock(600))
    session.engine = engine  # type: ignore[attr-defined]
    return session


def large_requests() -> list[tuple[str, bytes]]:
    """Path and body of requests that are expensive to read, to compare, to tokenise or to keep."""
    words = "Some of the very many words "
    messages = [
        [{"role": "user", "content": NEW + words * 15_000}],
        [{"role": "user", "content": NEW + " " * 100_000}],
        [{"role": "user", "content": NEW}] * 12_000,
        [{"role": "user", "content": NEW + words * 3}] * 2000,
        [{"role": "user", "content": NEW}, {"role": "assistant", "content": words * 9000}],
        [{"role": ("user", "assistant")[place % 2], "content": NEW} for place in range(3000)],
        [{"role": "user", "content": NEW + words * 100_000}],
    ]
    tools = [{**TOOL, "name": f"look{NEW}", "description": words * 3, "function": TOOL}] * 1500
    made = list[tuple[str, bytes]]()
    for path, field in PATHS.items():
        for history in messages:
            made.append((path, json.dumps({field: [*history, {"role": "user", "content": "?"}]}).encode()))
        body = {"tools": tools, "max_tokens": 8, field: [{"role": "user", "content": "?"}]}
        made.append((path, json.dumps(body).encode()))
    return made


class Attacker:
    """Sends large requests from a thread of its own, one after another, and counts the answers by status."""

    def __init__(self, url: str, requests: list[tuple[str, bytes]]) -> None:
        self.url, self.requests, self.is_over = urlsplit(url), requests, False
        self.statuses: list[int] = []
        self.sent = 0

    def send(self, most: int) -> None:
        for number in range(most):
            if self.is_over:
                break
            path, template = self.requests[number % len(self.requests)]
            body = template.replace(NEW.encode(), uuid4().hex.encode(), 1)
            self.sent += len(body)
            connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=120)
            connection.request("POST", self.url.path + path, body)
            response = connection.getresponse()
            response.read()
            self.statuses.append(response.status)
            connection.close()


async def converse(client: httpx.AsyncClient, url: str, turns: int, pause: float = 0.0) -> list[float]:
    """Have a conversation, and measure how long each answer took."""
    messages, seconds = list[Any](), list[float]()
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}?"})
        began = time.perf_counter()
        response = await client.post(f"{url}/chat/completions", json={"messages": messages})
        seconds.append(time.perf_counter() - began)
        messages.append(response.json()["choices"][0]["message"])
        await asyncio.sleep(pause)
    return seconds


def assert_exact(session: AgentSession, turns: int) -> None:
    """A conversation was recorded as the engine saw it, and all of it was bridged."""
    trajectory = session.to_trajectory()
    continuations = [info["continuation"] for info in trajectory.infos][-turns:]
    assert continuations == ["opened"] + ["bridged"] * (turns - 1)
    last = trajectory.turns[-1]
    tokens = [trajectory.tokens, *trajectory.branches][last.branch]
    seen, _, _ = session.engine.calls[-1]  # type: ignore[attr-defined]
    assert list(tokens.ids[: last.start]) == list(seen)


async def test_other_episodes_answer_as_quickly_and_it_is_right_afterwards(chat: Chat) -> None:
    hostile, other = session_of(chat, "hostile"), session_of(chat, "other")
    async with AsyncExitStack() as stack:
        url, _ = await stack.enter_async_context(serve_episode(other))
        hostile_url, _ = await stack.enter_async_context(serve_episode(hostile))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=120))
        requests = large_requests()
        attackers = [Attacker(hostile_url, random.Random(seed).sample(requests, len(requests))) for seed in range(8)]
        attack = asyncio.gather(*(asyncio.to_thread(one.send, 1000) for one in attackers))
        seconds = await converse(client, url, 40, pause=0.1)
        for one in attackers:
            one.is_over = True
        await attack
        statuses = [status for one in attackers for status in one.statuses]
        print(f"{len(statuses)} attacks; median {sorted(seconds)[20]:.3f} s, worst {max(seconds):.3f} s")
        assert set(statuses) == {400}
        assert len(statuses) >= 8
        # One of these requests alone could hold up everybody for seconds, one of 30 MB for minutes.
        assert sorted(seconds)[20] < 0.1
        assert max(seconds) < 2
        assert_exact(other, 40)
        assert (hostile.ended_by or ("", ""))[0] == Outcome.ENVIRONMENT_FAILED
        await converse(client, hostile_url, 5)
    assert_exact(hostile, 5)
    assert hostile.ended_by is None


@pytest.mark.nightly
async def test_nothing_is_kept_of_what_was_refused(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "TOO_LONG_SECONDS", 0.0)
    session = session_of(chat, "hostile")
    tracemalloc.start()
    try:
        async with serve_episode(session) as (url, _), httpx.AsyncClient(timeout=120) as client:
            await converse(client, url, 2)
            attacker = Attacker(url, large_requests())
            await asyncio.to_thread(attacker.send, 24)
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            attacker.sent = 0
            await asyncio.to_thread(attacker.send, 96)
            gc.collect()
            kept, most = (size - before for size in tracemalloc.get_traced_memory())
            await converse(client, url, 3)
    finally:
        tracemalloc.stop()
    print(f"of {attacker.sent / MIB:.1f} MiB {kept / MIB:.1f} were kept, and at most {most / MIB:.1f} used")
    assert kept < 8 * MIB < 32 * MIB < attacker.sent
    assert len(session.forest.turns) == 5
    assert_exact(session, 3)
