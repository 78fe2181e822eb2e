"""Only processes that have the run's key can use TransferQueue's sockets and vLLM's HTTP server."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import httpx
import pytest
import zmq
from fastapi import FastAPI
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
    client.linger = 0
    client.connect(f"tcp://127.0.0.1:{port}")
    client.send(b"a pickle")
    arrived = bool(server.poll(10_000 if client_key == "ab" * 32 else 500))
    context.destroy(linger=0)
    return arrived


def test_who_has_the_key_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered("ab" * 32, monkeypatch)


@pytest.mark.parametrize("key", [None, secrets.token_hex(32)], ids=["no key", "another key"])
def test_who_has_not_is_not(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not answered(key, monkeypatch)


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
