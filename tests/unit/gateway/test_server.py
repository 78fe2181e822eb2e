"""The HTTP server: retries, answers that are never delivered, and requests that mean harm."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from turnsmith.gateway import server as gateway_server
from turnsmith.gateway.histories import History
from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelReply, ModelRequest, Refusal
from turnsmith.gateway.server import serve_episode
from turnsmith.gateway.turns import Continuation, SampledTurn, ServedTurn
from turnsmith.inference.engine import Generation


class Episode:
    """Answers each request with the number of turns so far, when it may."""

    model_name, context = "tiny", 1000

    def __init__(self) -> None:
        self.turns: list[SampledTurn] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.rewards: list[tuple[float, int | None]] = []
        self.too_long: list[ContextTooLong] = []
        self.refused: list[str] = []

    async def take_turn(self, request: ModelRequest) -> ServedTurn:
        number = len(self.turns)
        if request.messages[-1].content == "fail" and number == 0:
            self.turns.append(self.turn(0, ""))
            raise Refusal("The engine died.", status=500)
        if request.messages[-1].content == "endless":
            raise ContextTooLong(5000, self.context, "")
        turn = self.turn(number, f"answer {number}")
        self.turns.append(turn)
        await self.may_answer.wait()
        return ServedTurn(ModelReply(f"id{number}", turn.reply.content, model="tiny"), turn)

    def turn(self, number: int, text: str) -> SampledTurn:
        generation, reply = Generation([1], [0.0]), ChatMessage("assistant", text)
        return SampledTurn(
            number, None, array("i"), 0, array("i", [1]), generation, reply, (), Continuation.OPENED, History()
        )

    def note_too_long(self, refusal: ContextTooLong) -> None:
        self.too_long.append(refusal)

    def note_bug(self, error: Exception) -> None:
        raise error

    def note_refused(self, refusal: Refusal) -> None:
        self.refused.append(str(refusal))

    def count_tokens(self, request: ModelRequest) -> int:
        return 7

    def add_reward(self, value: float, turn: int | None) -> None:
        self.rewards.append((value, turn))


@asynccontextmanager
async def served(episode: Episode) -> AsyncIterator[httpx.AsyncClient]:
    async with serve_episode(episode) as (url, _), httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


def body(text: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def text_of(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


RETRIES = [{"x-stainless-retry-count": "1"}, {"Idempotency-Key": "k"}]


@pytest.mark.parametrize("headers", RETRIES, ids=["retry count", "idempotency key"])
async def test_a_retry_gets_the_same_answer(headers: dict[str, str]):
    episode = Episode()
    async with served(episode) as client:
        first = await client.post("/chat/completions", json=body(), headers={"Idempotency-Key": "k"})
        again = await client.post("/chat/completions", json=body(), headers=headers)
        assert text_of(first) == text_of(again) == "answer 0"
        other = await client.post("/chat/completions", json=body("Other"), headers=headers)
        assert text_of(other) == "answer 1"


async def test_the_same_request_without_a_retry_is_a_new_sample():
    async with served(Episode()) as client:
        answers = [text_of(await client.post("/chat/completions", json=body())) for _ in range(2)]
    assert answers == ["answer 0", "answer 1"]


async def test_a_failure_is_not_repeated_to_a_retry():
    async with served(Episode()) as client:
        failed = await client.post("/chat/completions", json=body("fail"))
        again = await client.post("/chat/completions", json=body("fail"), headers=RETRIES[0])
    assert (failed.status_code, failed.json()["error"]["message"]) == (500, "The engine died.")
    assert text_of(again) == "answer 1"


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_retry_never_gets_the_answer_of_another_equal_request(is_answered: bool):
    """Several samples of one prompt, for a vote, are equal requests at the same time."""
    episode = Episode()
    async with served(episode) as client:
        failed = await client.post("/chat/completions", json=body("fail"))
        if not is_answered:
            episode.may_answer.clear()
        other = asyncio.create_task(client.post("/chat/completions", json=body("fail")))
        while len(episode.turns) < 2 or (is_answered and not other.done()):
            await asyncio.sleep(0.01)
        again = asyncio.create_task(client.post("/chat/completions", json=body("fail"), headers=RETRIES[0]))
        while len(episode.turns) < 3 and not again.done():
            await asyncio.sleep(0.01)
        episode.may_answer.set()
        assert (failed.status_code, text_of(await other), text_of(await again)) == (500, "answer 1", "answer 2")


async def test_who_left_gets_its_own_of_equal_answers():
    episode = Episode()
    episode.may_answer.clear()
    async with served(episode) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/chat/completions", json=body(), timeout=0.2)
        other = asyncio.create_task(client.post("/chat/completions", json=body()))
        while len(episode.turns) < 2:
            await asyncio.sleep(0.01)
        again = asyncio.create_task(client.post("/chat/completions", json=body(), headers=RETRIES[0]))
        await asyncio.sleep(0.1)
        episode.may_answer.set()
        assert (text_of(await other), text_of(await again)) == ("answer 1", "answer 0")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_nobody_waited_for_is_not_delivered_until_a_retry(stream: bool):
    episode = Episode()
    episode.may_answer.clear()
    async with served(episode) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/chat/completions", json=body(stream=stream), timeout=0.3)
        await asyncio.sleep(0.1)
        episode.may_answer.set()
        await asyncio.sleep(0.1)
        assert [turn.is_delivered for turn in episode.turns] == [False]
        again = await client.post("/chat/completions", json=body(stream=stream), headers=RETRIES[0])
        assert "answer 0" in again.text
        assert [turn.is_delivered for turn in episode.turns] == [True]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_sends_no_more_gets_its_answer(stream: bool):
    episode = Episode()
    episode.may_answer.clear()
    async with serve_episode(episode) as (url, _):
        content = json.dumps(body(stream=stream)).encode()
        request = post(urlsplit(url).path + "/chat/completions", content, f"Content-Length: {len(content)}")
        waiting = asyncio.create_task(raw(url, request, is_half_closed=True))
        while not episode.turns:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        episode.may_answer.set()
        answer = await waiting
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"answer 0" in answer
    assert [turn.is_delivered for turn in episode.turns] == [True]


@pytest.mark.parametrize("sent", [b"", b"POST", b"whole", b"half"])
async def test_a_connection_on_which_nothing_waits_ends_with_its_client(sent: bytes):
    async with serve_episode(Episode()) as (url, _):
        content = json.dumps(body()).encode()
        request = post(urlsplit(url).path + "/chat/completions", content, f"Content-Length: {len(content)}")
        began = time.monotonic()
        answer = await raw(url, {b"whole": request, b"half": request[:-1]}.get(sent, sent), is_half_closed=True)
    assert (b"answer 0" in answer) is (sent == b"whole")
    assert time.monotonic() - began < 2


async def test_a_stream_is_kept_alive_while_the_model_works(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway_server, "KEEP_ALIVE_SECONDS", 0.05)
    episode = Episode()
    episode.may_answer.clear()
    async with served(episode) as client:
        asyncio.get_running_loop().call_later(0.3, episode.may_answer.set)
        text = (await client.post("/chat/completions", json=body(stream=True), timeout=0.2)).text
    assert text.count(": waiting for the model") >= 3
    assert text.endswith("data: [DONE]\n\n")


async def test_models_rewards_and_counts():
    episode = Episode()
    async with served(episode) as client:
        assert (await client.get("/models")).json()["data"][0]["id"] == "tiny"
        assert (await client.post("/reward", content="0.5")).status_code == 200
        assert (await client.post("/reward", json={"value": 1, "turn": 0})).status_code == 200
        assert (await client.post("/reward", json={"value": "much"})).status_code == 400
        assert (await client.post("/messages/count_tokens", json=body())).json() == {"input_tokens": 7}
    assert episode.rewards == [(0.5, None), (1.0, 0)]


async def test_a_reward_that_is_sent_twice_with_one_idempotency_key_counts_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway_server, "_MOST_REMEMBERED", 2)
    episode = Episode()
    async with served(episode) as client:
        for key, value in (("a", 1), ("a", 1), ("b", 1), ("", 0.5), ("", 0.5), ("a", 1), ("c", 2), ("b", 1)):
            headers = {"Idempotency-Key": key} if key else {}
            assert (await client.post("/reward", json=value, headers=headers)).status_code == 200
        other = await client.post("/reward", json=3, headers={"Idempotency-Key": "c"})
    assert [value for value, _ in episode.rewards] == [1, 1, 0.5, 0.5, 2]
    assert (other.status_code, "use a new key for each" in other.json()["error"]["message"]) == (422, True)
    assert [sentence[:21] for sentence in episode.refused] == ["This Idempotency-Key "]


async def test_what_is_refused_is_noted_and_a_route_that_is_not_there_is_told():
    episode = Episode()
    async with served(episode) as client:
        for route, asked in {"/chat/completions": body(n=2), "/embeddings": {"input": "a"}, "/completions": {}}.items():
            refused = await client.post(route, json=asked)
            assert refused.json()["error"]["message"] == episode.refused[-1]
        wrong = await client.post(f"{client.base_url}".replace("/v1", "/v9") + "chat/completions", json=body())
    assert "`n` is not supported" in episode.refused[0]
    assert episode.refused[1:] == [
        f"There is no /{route} here: the model's URL offers chat/completions, responses and messages."
        for route in ("embeddings", "completions")
    ]
    assert (wrong.status_code, len(episode.refused)) == (404, 3)


async def test_an_agent_reaches_its_own_episode_alone():
    one, other = Episode(), Episode()
    async with serve_episode(one) as (url, secret), serve_episode(other) as (other_url, other_secret):
        assert secret != other_secret
        assert urlsplit(url).netloc == urlsplit(other_url).netloc
        assert urlsplit(url).hostname == "127.0.0.1"
        async with httpx.AsyncClient(base_url=url) as client:
            for route in ("", "/", "/../", "//", "/models/../../", "/%2e%2e/", "/chat", "/e", "/chat/completions/x"):
                assert (await client.get(url + route)).status_code in (404, 405)
            wrong = url.replace(secret, "x" * len(secret))
            refused = await client.post(f"{wrong}/chat/completions", json=body())
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
            claude = await client.post(f"{wrong}/messages", json=body())
            assert claude.json()["error"]["type"] == "not_found_error"
    assert one.turns == other.turns == []


async def test_an_agent_does_not_outlive_its_episode():
    keeps_server = Episode()
    episode = Episode()
    episode.may_answer.clear()
    async with serve_episode(keeps_server), httpx.AsyncClient(timeout=20) as client:
        async with serve_episode(episode) as (url, _):
            waiting = asyncio.create_task(client.post(f"{url}/chat/completions", json=body()))
            while not episode.turns:
                await asyncio.sleep(0.01)
        assert (await waiting).status_code == 404
        assert (await client.post(f"{url}/chat/completions", json=body())).status_code == 404


async def raw(url: str, request: bytes, *, seconds: float = 3.0, is_half_closed: bool = False) -> bytes:
    """Send bytes and read what comes back, until the other side closes or the time is over."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = b""
    try:
        writer.write(request)
        await writer.drain()
        if is_half_closed:
            writer.write_eof()
        async with asyncio.timeout(seconds):
            while chunk := await reader.read(65536):
                answer += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


def post(path: str, content: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def hostile_requests(path: str) -> list[bytes]:
    """Forty requests that a server may stumble over; `path` is that of a real route."""
    good = json.dumps(body()).encode()
    length = f"Content-Length: {len(good)}"
    smuggled = b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = "Transfer-Encoding: chunked"
    paths = ["/", "/e//v1/chat/completions", "/e/../../etc/passwd", path + "/../../x", path.replace("/e/", "/E/"), "*"]
    paths += [path.replace("v1", "v2"), "/e/%00/v1/chat/completions", "/e/" + "a" * 7000 + "/v1/models", "http://x/"]
    bodies = [b"", b"{", b"[]", b"null", b"\x00" * 100, b"[" * 50_000, b'{"messages": [' + b"{}," * 999, b"\xff\xfe"]
    bodies += [b'{"messages": [{"role": "user", "content": ' + b"9" * 5000 + b"}]}", b'"' + b"a" * 10**6 + b'"']
    requests = [post(place, good, length) for place in paths]
    requests += [post(path, content, f"Content-Length: {len(content)}", "Connection: close") for content in bodies]
    requests += [
        post(path, good + smuggled, length, chunked),
        post(path, b"0\r\n\r\n" + smuggled, chunked, length),
        post(path, good, "Content-Length: 5", length),
        post(path, good, "Content-Length: -1"),
        post(path, good, "Content-Length: 99999999999999999999"),
        post(path, good, f"Content-Length: {40 * 2**20}"),
        post(path, b"zz\r\n" + good, chunked),
        post(path, b"fffffffffffffffff\r\n", chunked),
        post(path, good, f"Content-Length : {len(good)}"),
        post(path, good, length, "X: a\r\n b: c"),
        post(path, good, length, "A" * 20_000 + ": 1"),
        post(path, good, length, *[f"h{number}: {number}" for number in range(2000)]),
        post(path, gzip.compress(b" " * 10**8), "Content-Encoding: gzip", "Content-Length: 97205"),
        post(path, good, length, "Content-Encoding: br"),
        post(path, good, length, "Expect: 100-continue", "Connection: close"),
        post(path, good, length, "Upgrade: websocket", "Connection: Upgrade"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"GET " + b"/" * 60_000 + b" HTTP/1.1\r\n\r\n",
        b"\r\n" * 1000,
        b"POST",
    ]
    return requests


async def test_forty_hostile_requests_cost_nobody_anything(caplog: pytest.LogCaptureFixture):
    victim, hostile = Episode(), Episode()
    async with serve_episode(victim) as (url, _), serve_episode(hostile) as (hostile_url, _):
        requests = hostile_requests(urlsplit(hostile_url).path + "/chat/completions")
        assert len(requests) == 40
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            attack = asyncio.gather(*(raw(hostile_url, request) for request in requests))
            for number in range(50):
                response = await client.post("/chat/completions", json=body(str(number)))
                assert text_of(response) == f"answer {number}"
                await asyncio.sleep(0.02)
            answers = await attack
        assert all(b"admin" not in answer for answer in answers)
        assert len(victim.turns) == 50
    assert "Traceback" not in caplog.text


async def test_a_body_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway_server, "BODY_SECONDS", 0.2)
    async with serve_episode(Episode()) as (url, _):
        slow = post(urlsplit(url).path + "/chat/completions", b'{"mess', "Content-Length: 100", "Connection: close")
        answer = await raw(url, slow)
    assert b"did not arrive within" in answer


async def spaces() -> AsyncIterator[bytes]:
    """64 MiB, of which nobody knows the length before."""
    for _ in range(2**10):
        yield b" " * 2**16


async def test_a_body_that_is_too_large_is_refused():
    episode = Episode()
    most = 64 * episode.context + 256 * 1024
    async with served(episode) as client:
        empty = len(json.dumps(body("")).encode())
        fits = await client.post("/chat/completions", content=json.dumps(body("")).encode() + b" " * (most - empty))
        assert (text_of(fits), episode.too_long) == ("answer 0", [])
        large = await client.post("/chat/completions", content=b" " * (most + 1))
        assert (large.status_code, large.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert f"more than {most:,} bytes" in large.json()["error"]["message"]
        endless = await client.post("/messages", content=spaces())
        assert (endless.status_code, endless.json()["error"]["type"]) == (400, "invalid_request_error")
        assert len(episode.too_long) == 2
        assert text_of(await client.post("/chat/completions", json=body())) == "answer 1"
        assert (await client.post("/messages/count_tokens", content=b" " * (most + 1))).status_code == 400
        assert len(episode.too_long) == 2, "counting asks for no turn"


async def test_an_episode_that_sends_what_is_too_long_waits_on_all_of_its_connections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway_server, "TOO_LONG_SECONDS", 0.3)
    async with served(Episode()) as client:
        assert text_of(await client.post("/chat/completions", json=body())) == "answer 0"
        began = time.monotonic()
        refused = asyncio.create_task(client.post("/chat/completions", json=body("endless")))
        await asyncio.sleep(0.1)
        assert text_of(await client.post("/chat/completions", json=body())) == "answer 1"
        assert time.monotonic() - began >= 0.3
        assert (await refused).status_code == 400
