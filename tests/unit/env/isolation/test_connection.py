"""Our side of a connection to a worker: replies find their callers, and a worker that is lost fails all that wait."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from turnsmith.env.isolation import connection as connection_module
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.connection import Connection
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.isolation.wire import Channel
from turnsmith.errors import EnvironmentFailure, WorkerLost


class FakeWorker:
    """The other end of the connection, played by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_ready: bool = True) -> None:
        self.connection, there = socket.socketpair()
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.channel = Channel(
            there, lambda message: self.requests.put_nowait(m.read_request(bytes(message))), lambda reason: None
        )
        self.lost: list[Connection] = []

        monkeypatch.setattr(connection_module, "WorkerProcess", lambda isolation: self)
        if is_ready:
            self.reply(m.Ready(0))

    async def wait(self) -> str:
        return "was killed by SIGKILL"

    def reply(self, reply: m.Reply) -> None:
        self.channel.send(m.encode(reply))

    async def connect(self) -> Connection:
        connection = Connection(Isolation("process"), self.lost.append)
        await connection.ready
        return connection


async def test_replies_find_their_callers_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(monkeypatch)
    connection = await worker.connect()
    calls = [
        asyncio.ensure_future(connection.call(m.Step(connection.next_call(), place, "go"), 60)) for place in (1, 2, 3)
    ]
    requests = [await worker.requests.get() for _ in calls]
    assert [request.environment for request in requests] == [1, 2, 3]
    assert connection.pending == 3
    for request in reversed(requests):
        worker.reply(m.ErrorReply(request.call, f"to {request.environment}"))
    assert [(await call).sentence for call in calls] == ["to 1", "to 2", "to 3"]
    assert connection.pending == 0
    connection.end("was closed")
    await connection.wait_until_ended()


async def test_a_definition_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(monkeypatch)
    connection = await worker.connect()
    for _ in range(2):
        connection.define(m.Define(0, 5, "game:Game", []))
    call = asyncio.ensure_future(connection.call(m.IsOver(connection.next_call(), 1), 60))
    assert [type(await worker.requests.get()) for _ in range(2)] == [m.Define, m.IsOver]
    call.cancel()
    connection.end("was closed")


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (lambda worker: worker.reply(m.ExitReport(0, 3)), "exited with status 3"),
        (lambda worker: worker.channel.close(), "was killed by SIGKILL"),
        (lambda worker: worker.channel.send(b"\xc1"), "was ended: it sent something that is not a message"),
    ],
)
async def test_a_lost_worker_fails_what_waits_and_names_those_with_a_call_in_progress(
    monkeypatch: pytest.MonkeyPatch, end: Any, sentence: str
) -> None:
    worker = FakeWorker(monkeypatch)
    connection = await worker.connect()
    connection.environments = {1: (7, 100), 2: (7, 200), 3: (7, 300)}
    calls = [
        asyncio.ensure_future(connection.call(m.Step(connection.next_call(), place, "go"), 60)) for place in (1, 3)
    ]
    await worker.requests.get()
    end(worker)
    for call in calls:
        with pytest.raises(WorkerLost, match=sentence):
            await call
    assert worker.lost == [connection]
    assert connection.suspects == {(7, 100), (7, 300)}, "environment 2 waited for its model: it did nothing"
    with pytest.raises(WorkerLost, match=sentence):
        await connection.call(m.Step(connection.next_call(), 2, "go"), 60)


async def test_a_worker_that_does_not_answer_a_ping_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connection_module, "_PING_SECONDS", 0.1)
    worker = FakeWorker(monkeypatch)
    connection = await worker.connect()
    connection.call_seconds = 0.05
    call = asyncio.ensure_future(connection.call(m.Step(connection.next_call(), 1, "go"), 60))
    assert isinstance(await worker.requests.get(), m.Step)
    for _ in range(3):  # as long as it answers, it is only slow
        assert isinstance(await asyncio.wait_for(worker.requests.get(), 5), m.Ping)
        worker.reply(m.BoolReply(-1))
    assert not call.done()
    with pytest.raises(WorkerLost, match=r"did not answer for 0.1 seconds, after a call took too long"):
        await asyncio.wait_for(call, 5)


async def test_a_worker_with_a_stuck_call_that_nobody_waits_for_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(monkeypatch)
    connection = await worker.connect()
    connection.environments = {1: (7, 100)}
    worker.reply(m.ErrorReply(99, "late", is_late=True, is_stuck=True))
    while not connection.is_draining:
        await asyncio.sleep(0.001)
    assert connection.is_open, "it has an environment left"
    connection.environments.clear()
    connection.drain()
    assert not connection.is_open
    assert "because a call in it hung" in await connection.wait_until_lost()


async def test_what_cannot_be_sent_costs_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(monkeypatch)
    connection = await worker.connect()
    unsendable = (m.Step(1, 1, "\ud800"), m.Reset(2, 1, 1, 0, {"socket": object()}), m.Step(3, 1, "x" * (21 * 2**20)))
    for request in unsendable:
        with pytest.raises(EnvironmentFailure, match="cannot leave this process"):
            await connection.call(request, 60)
    assert (connection.pending, connection.is_open) == (0, True)
    connection.end("was closed")


async def test_a_worker_that_never_starts_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_START_SECONDS", 0.05)
    with pytest.raises(WorkerLost, match="did not start in time"):
        await FakeWorker(monkeypatch, is_ready=False).connect()
