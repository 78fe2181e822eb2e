"""Only processes that have the run's key can use TransferQueue's sockets and vLLM's HTTP server."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
import zmq
from fastapi import FastAPI
from tests.e2e.another_user import answered_over_zmq
from transfer_queue.utils.zmq_utils import create_zmq_socket

from turnsmith.trainer.verl.transport import RequireKey, create_curve_socket


def answered(client_key: str | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a message from a client with this key, or without any, reaches a server of a run."""
    context: Any = zmq.Context()
    monkeypatch.setenv("TURNSMITH_RUN_KEY", "ab" * 32)
    server = create_curve_socket(context, zmq.ROUTER, "127.0.0.1")
    port = server.bind_to_random_port("tcp://127.0.0.1")
    if client_key:
        monkeypatch.setenv("TURNSMITH_RUN_KEY", client_key)
    create: Any = create_curve_socket if client_key else create_zmq_socket
    client = create(context, zmq.DEALER, "127.0.0.1")
    client.linger, client.sndtimeo = 0, 500
    client.connect(f"tcp://127.0.0.1:{port}")
    with suppress(zmq.Again):  # it was refused before it could send
        client.send(b"a pickle")
    arrived = bool(server.poll(10_000 if client_key == "ab" * 32 else 500))
    context.destroy(linger=0)
    return arrived


def test_who_has_the_key_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered("ab" * 32, monkeypatch)


@pytest.mark.parametrize("key", [None, secrets.token_hex(32)], ids=["no key", "another key"])
def test_who_has_not_is_not(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not answered(key, monkeypatch)


@pytest.mark.parametrize("secured", [False, True], ids=["answers all", "answers who has the key"])
def test_a_stranger_ends_where_the_server_is_faster(secured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that is refused before the first message may leave nobody to send to: that depends on chance."""

    def connect_and_wait(asking: zmq.Socket[bytes], address: str) -> None:
        connect(asking, address)
        time.sleep(0.3)

    def echo() -> None:
        while not ended.is_set():
            if server.poll(50):
                server.send_multipart(server.recv_multipart())

    def ask() -> None:
        answers.append(answered_over_zmq("127.0.0.1", port, ["00"]))

    context: Any = zmq.Context()
    monkeypatch.setenv("TURNSMITH_RUN_KEY", "ab" * 32)
    server = (create_curve_socket if secured else create_zmq_socket)(context, zmq.ROUTER, "127.0.0.1")
    port = server.bind_to_random_port("tcp://127.0.0.1")
    connect = zmq.Socket.connect
    monkeypatch.setattr(zmq.Socket, "connect", connect_and_wait)
    answers: list[bool] = []
    ended = threading.Event()
    answering = threading.Thread(target=echo)
    strangers = [threading.Thread(target=ask, daemon=True) for _ in range(16)]
    for thread in (answering, *strangers):
        thread.start()
    for thread in strangers:
        thread.join(20)
    ended.set()
    answering.join()
    assert len(answers) == 16
    assert any(answers) is not secured
    context.destroy(linger=0)


@pytest.mark.parametrize(("key", "status"), [("", 401), ("cd" * 32, 401), ("ab" * 32, 200)])
@pytest.mark.parametrize("path", ["/v1/models", "/invocations", "/"])
def test_every_path_of_the_http_server_needs_the_key(
    path: str, key: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSMITH_RUN_KEY", "ab" * 32)
    app = FastAPI()
    app.get(path)(lambda: "secret")

    async def get() -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(RequireKey(app)), base_url="http://run") as client:
            return await client.get(path, headers=headers)

    assert asyncio.run(get()).status_code == status
