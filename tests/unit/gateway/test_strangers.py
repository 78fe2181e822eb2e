"""Connections without the key: closed in time, few enough, and in nobody's way."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.unit.gateway.test_server import Episode, body, text_of

from turnsmith.gateway import strangers
from turnsmith.gateway.server import ModelServer
from turnsmith.gateway.strangers import allow_more_files

KEY = "a key of at least 16 characters"
ENDLESS_HEADERS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
SLOW_BODY = ENDLESS_HEADERS + b"Content-Length: 1000\r\n\r\n{"
IDLE_WITHOUT_KEY = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
KINDS = (b"", ENDLESS_HEADERS, SLOW_BODY, IDLE_WITHOUT_KEY)
WITH_KEY = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + KEY.encode() + b"\r\n\r\n"


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """The port of a model behind `KEY`."""
    server, listener = ModelServer(Episode(), KEY), socket.create_server(("127.0.0.1", 0))
    await server.start(listener)
    try:
        yield listener.getsockname()[1]
    finally:
        await server.stop()


async def connect(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def is_closed(reader: asyncio.StreamReader, within: float) -> bool:
    """Whether the server closes the connection, whatever it says before."""
    try:
        async with asyncio.timeout(within):
            while await reader.read(65536):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


async def ask(port: int) -> str:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1", headers={"X-Api-Key": KEY}) as client:
        return text_of(await client.post("/chat/completions", json=body()))


async def test_a_connection_that_shows_no_key_in_time_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strangers, "STRANGER_SECONDS", 0.2)
    async with serving() as port:
        knows, known = await connect(port, WITH_KEY)
        readers = [await connect(port, sent) for sent in KINDS]
        assert all([await is_closed(reader, 2.0) for reader, _ in readers])
        assert b"200 OK" in await knows.readuntil(b"\r\n")
        known.write(WITH_KEY)  # whoever has the key may be idle
        await knows.readuntil(b"\r\n\r\n")
        assert not knows.at_eof()
        for _, writer in [*readers, (knows, known)]:
            writer.close()


async def test_a_client_that_sends_no_more_gets_its_answer():
    content = json.dumps(body()).encode()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"X-Api-Key: {KEY}", f"Content-Length: {len(content)}"]
    async with serving() as port:
        reader, writer = await connect(port, "\r\n".join([*lines, "", ""]).encode() + content)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    assert b"answer 0" in answer


async def test_many_strangers_are_in_nobodys_way(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 64)
    async with serving() as port:
        knows, known = await connect(port, WITH_KEY)
        await knows.readuntil(b"\r\n\r\n")
        crowd = [await connect(port, KINDS[number % 4]) for number in range(160)]
        began = time.monotonic()
        assert await ask(port) == "answer 0"
        assert time.monotonic() - began < 3.0
        closed = [await is_closed(reader, 0.0) for reader, _ in crowd]
        assert sum(closed) == 160 - 64 + 1, "one place was taken by the one that asked"
        assert all(closed[:90]), "those that came first"
        assert not any(closed[-60:])
        known.write(WITH_KEY)
        await knows.readuntil(b"\r\n\r\n")
        for _, writer in [*crowd, (knows, known)]:
            writer.close()


async def test_strangers_leave_descriptors_to_those_with_the_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    async with serving() as port:
        friends = [await connect(port, WITH_KEY) for _ in range(60)]
        for reader, _ in friends:
            await reader.readuntil(b"\r\n\r\n")
        crowd = [await connect(port, ENDLESS_HEADERS) for _ in range(120)]
        assert await ask(port) == "answer 0"
        left = sum([not await is_closed(reader, 0.0) for reader, _ in crowd])
        assert 60 <= left <= 66, "without the limit on descriptors all would be here"
        for _, writer in [*crowd, *friends]:
            writer.close()


def test_the_limit_on_files_is_raised_as_far_as_it_may_be(monkeypatch: pytest.MonkeyPatch):
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    for soft, hard in ((1024, 4096), (256, resource.RLIM_INFINITY), (1024, 1_048_576), (4096, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=(soft, hard): found)
        allow_more_files()
    assert limits == [(4096, 4096), (65_536, resource.RLIM_INFINITY), (65_536, 1_048_576)]
