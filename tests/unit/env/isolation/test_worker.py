"""The worker's side of the protocol: every request gets one reply, whatever the environment does."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from turnsmith import Trajectory
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation import worker as worker_module
from turnsmith.env.isolation.serialization import pack_trajectory
from turnsmith.env.isolation.wire import Channel

GAMES = "tests.unit.env.isolation.games"


class Client:
    """Talks to a worker that runs on the same event loop."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        self.replies: asyncio.Queue[m.Reply] = asyncio.Queue()
        self.channel = Channel(here, lambda message: self.replies.put_nowait(m.read_reply(bytes(message))), print)
        self.running = asyncio.ensure_future(worker_module._Worker().run(there))
        self.calls = 0

    async def ask(self, kind: type[Any], *fields: Any) -> Any:
        self.calls += 1
        self.channel.send(m.encode(kind(self.calls, *fields)))
        reply = await asyncio.wait_for(self.replies.get(), 10)
        assert reply.call == self.calls
        return reply

    def define(self, number: int, name: str, **more: Any) -> None:
        self.channel.send(m.encode(m.Define(0, number, name, [], call_seconds=5.0, **more)))

    async def end(self) -> None:
        self.channel.close()
        await asyncio.wait_for(self.running, 10)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a worker that has said that it is ready, and knows the class `Counter` as number 1."""
    made = Client()
    assert await made.replies.get() == m.Ready(0)
    made.define(1, f"{GAMES}:Counter")
    yield made
    await made.end()


async def test_a_reset_of_a_class_that_was_never_defined_gets_an_answer(client: Client) -> None:
    assert "KeyError: 99" in (await client.ask(m.Reset, 7, 99, 3)).sentence
    assert (await client.ask(m.Ping)).yes is True


async def test_an_episode(client: Client) -> None:
    reply = await client.ask(m.Reset, 7, 1, 3, {"row": 1})
    assert (reply.observation, reply.prefix) == ("start 3 {'row': 1}", "You count to 10.")
    assert [tool.name for tool in m.read_tools(reply.tools)] == ["add", "wait"]
    reply = await client.ask(m.Step, 7, "stop")
    assert (reply.observation, reply.reward, reply.terminated) == ("stop 4", 2.0, True)
    assert m.read_dict(reply.info)["total"] == 4
    reply = await client.ask(m.UseTool, 7, "add", json.dumps({"amount": 5}), "episode-1")
    assert (json.loads(reply.text), reply.ok) == ({"total": 9, "episode": "episode-1"}, True)
    assert (await client.ask(m.IsOver, 7)).yes is False
    client.define(2, f"{GAMES}:twice_the_total")
    reply = await client.ask(m.Score, 7, 2, pack_trajectory(Trajectory(actions=["go"])), 5.0)
    assert (reply.reward, reply.shares) == (19.0, {"total": 9.0})
    assert (await client.ask(m.Close, 7)).yes is True
    assert "was closed" in (await client.ask(m.Step, 7, "go")).sentence
    assert (await client.ask(m.Close, 7)).yes is True, "closing twice is fine"
    assert (await client.ask(m.Ping)).yes is True


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ((m.Step, 7, "raise"), "AsyncCounter.step raised ValueError: bad"),
        ((m.UseTool, 7, "add", "{}", ""), "The environment has no tools."),
        ((m.Score, 7, 5, b"not a trajectory", 5.0), "raised"),
        ((m.Reset, 8, 99, 0, None), ""),
    ],
)
async def test_what_fails_is_replied_to(client: Client, request_: tuple[Any, ...], sentence: str) -> None:
    client.define(2, f"{GAMES}:AsyncCounter")
    client.define(5, "builtins:len")
    await client.ask(m.Reset, 7, 2, 0, None)
    if request_[0] is m.Reset:  # an environment of a definition that nobody sent
        client.define(99, "no_such_module:Game")
        sentence = "There is no module 'no_such_module'"
    reply = await client.ask(*request_)
    assert isinstance(reply, m.ErrorReply)
    assert sentence in reply.sentence


async def test_a_reply_that_cannot_be_sent_is_an_error_reply(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.ask(m.Reset, 7, 1, 3, None)
    monkeypatch.setattr("turnsmith.env.isolation.wire.MAX_MESSAGE_BYTES", 5000)
    reply = await client.ask(m.UseTool, 7, "wait", "{}", "")  # returns 10,000 characters
    assert isinstance(reply, m.ErrorReply)
    assert reply.sentence.startswith("The reply could not be sent: a message of")


async def test_a_call_that_hangs_is_replied_to_in_time_and_marked_as_stuck(client: Client) -> None:
    client.define(2, f"{GAMES}:Sleeper", config=m.encode({"call_seconds": 0.1}))
    await client.ask(m.Reset, 7, 2, 0, None)
    reply = await client.ask(m.Step, 7, "0.5")
    assert (reply.is_late, reply.is_stuck) == (True, True)
    assert "Sleeper.step took longer than 0.1 seconds" in reply.sentence
    assert (await client.ask(m.Close, 7)).yes is True, "it waited for the call to end, and then closed"


async def test_something_that_is_not_a_message_ends_the_worker() -> None:
    client = Client()
    await client.replies.get()
    client.channel.send(b"\xc1 nonsense")
    await asyncio.wait_for(client.running, 10)
    client.channel.close()
