"""The HTTP server of the gateway.

For agents: each event loop that runs episodes has one server on loopback. An episode's route contains a secret, so an
agent can reach only its own episode, and only until that ends.

For `turnsmith serve`: one server offers one model to all clients that have its key.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import orjson
from aiohttp import web

from turnsmith.errors import describe_failure, internal_error, is_ours
from turnsmith.gateway.dialects import AnthropicMessages, APIDialect, ChatCompletions, Responses
from turnsmith.gateway.dialects.anthropic_messages import write_token_count
from turnsmith.gateway.dialects.base import KnownMessages, decode_body
from turnsmith.gateway.half_closed import has_arrived, may_have_left
from turnsmith.gateway.request import ContextTooLong, ModelRequest, Refusal
from turnsmith.gateway.strangers import Strangers
from turnsmith.gateway.turns import ServedEpisode, ServedTurn

logger = logging.getLogger(__name__)
# aiohttp writes a traceback for each request that is not HTTP; an agent could fill the log with them.
_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.setLevel(logging.CRITICAL)

BYTES_PER_TOKEN, MOST_EXTRA_BYTES = 64, 256 * 2**10
"""The most bytes of a request, for each token of the context and for its other fields. Text has about four bytes per
token; JSON, escapes, ids and unknown fields take several times as many."""
BODY_SECONDS = 30.0
"""How long the body of a request may take to arrive."""
TOO_LONG_SECONDS = 0.25
"""How long an episode's requests wait after one that was too long, because refusing it takes time."""
KEEP_ALIVE_SECONDS = 10.0
"""How often a stream that waits for the model sends a comment, so that its client does not give up."""
_MOST_REMEMBERED = 256
"""How many requests are remembered, for clients that repeat them. Each keeps its turn and all turns before it."""
_RETRIED_STATUS = 500
"""Clients retry after an error with this status or a higher one."""
_CHAT, _RESPONSES, _MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()


class _Reward(msgspec.Struct):
    value: float
    turn: int | None = None


@dataclass(eq=False)
class _RequestedTurn:
    """A turn that was requested, and the last request for it."""

    digest: tuple[str, int, int]
    key: str
    """The idempotency key."""
    http: web.Request
    task: asyncio.Task[ServedTurn] | None
    """None if it failed and its client will retry."""

    @property
    def may_have_left(self) -> bool:
        """Whether its client may have closed the connection."""
        return may_have_left(self.http)

    @property
    def has_failed(self) -> bool:
        """Whether the turn failed or was cancelled."""
        task = self.task
        return task is None or (task.done() and (task.cancelled() or task.exception() is not None))

    @property
    def is_delivered(self) -> bool:
        """Whether the turn was sent, as far as the server knows."""
        task = self.task
        return task is not None and task.done() and not self.has_failed and task.result().turn.is_delivered


@dataclass
class _Route:
    """One episode on the server, and the turns that were requested of it."""

    episode: ServedEpisode
    over: Refusal
    """The answer to requests that wait for a turn when the episode ends."""
    is_shared: bool = False
    """Whether it has several clients, so that a delivered turn may have been another client's."""
    requested: list[_RequestedTurn] = field(default_factory=list[_RequestedTurn])
    """Oldest first."""
    tasks: set[asyncio.Task[ServedTurn]] = field(default_factory=set["asyncio.Task[ServedTurn]"])
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Requests are read one at a time, so that other episodes are served between large ones."""

    rewarded: dict[str, _Reward] = field(default_factory=dict[str, _Reward])
    """The last rewards that came with an idempotency key, by key."""

    def __post_init__(self) -> None:
        self.known: defaultdict[str, KnownMessages] = defaultdict(lambda: KnownMessages(self.episode.context))
        """The messages of earlier requests, by dialect."""

    async def read(self, http: web.Request, dialect: APIDialect) -> tuple[bytes, ModelRequest]:
        """The body of a request, and what it asks for."""
        body = await _body(http, self.episode.context)
        async with self.reading:
            return body, dialect.read(body, self.known[dialect.name])

    def reward(self, reward: _Reward, key: str) -> None:
        """Add a reward to the episode. A reward that a client repeats with the same idempotency key counts once."""
        known = self.rewarded.get(key)
        if known is None:
            self.episode.add_reward(reward.value, reward.turn)
        elif known != reward:
            raise Refusal("This Idempotency-Key was used for another reward: use a new key for each.", status=422)
        if key:
            self.rewarded[key] = reward
        for oldest in list(self.rewarded)[:-_MOST_REMEMBERED]:
            del self.rewarded[oldest]

    async def pause(self) -> None:
        """Delay an agent that sends requests that are too long, on all of its connections."""
        if not self.is_shared:
            async with self.reading:
                await asyncio.sleep(TOO_LONG_SECONDS)

    def turn_for(self, http: web.Request, body: bytes, request: ModelRequest) -> asyncio.Task[ServedTurn]:
        """Begin a turn; a client that repeats a request because it got no answer gets the same turn."""
        digest = (http.path, len(body), hash(body))  # a cryptographic hash of a large history would be slow
        key = http.headers.get("Idempotency-Key", "")
        is_retry = http.headers.get("X-Stainless-Retry-Count", "0") not in ("", "0")
        if is_retry or (key and any(turn.key == key for turn in self.requested)):
            same = [turn for turn in self.requested if turn.digest == digest and key in ("", turn.key)]
            known = self._to_repeat(same)
            if known is not None and known.task is not None:
                known.http = http
                return known.task
        # A task of its own, so that the turn is finished if the client leaves, and is there when it retries.
        task = asyncio.get_running_loop().create_task(self.episode.take_turn(request))
        turn = _RequestedTurn(digest, key, http, task)
        self.requested.append(turn)
        del self.requested[:-_MOST_REMEMBERED]
        self.tasks.add(task)
        task.add_done_callback(partial(self._note_end, turn))
        return task

    def _to_repeat(self, same: list[_RequestedTurn]) -> _RequestedTurn | None:
        """Which of several equal requests a client repeats, if any; equal requests also ask for several samples."""
        failed = next((turn for turn in same if turn.has_failed), None)
        if failed is not None:
            self.requested.remove(failed)
            return None
        if self.is_shared:
            same = [turn for turn in same if not turn.is_delivered]
        left = sorted((turn for turn in same if turn.may_have_left), key=lambda turn: turn.is_delivered)
        # If several could be meant, a new turn is safe: it is no other client's.
        return left[0] if left else same[0] if len(same) == 1 else None

    async def result(self, task: asyncio.Task[ServedTurn]) -> ServedTurn:
        """Wait for a turn. Cancelling the wait does not cancel the turn."""
        await asyncio.wait((task,))
        if task.cancelled():
            raise self.over
        return task.result()

    def end(self) -> None:
        """Cancel the turns that are being sampled."""
        for task in list(self.tasks):
            task.cancel()

    def _note_end(self, turn: _RequestedTurn, task: asyncio.Task[ServedTurn]) -> None:
        self.tasks.discard(task)
        # Reading the exception marks it as seen, because the client may be gone.
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and is_ours(error, callers=0):
            self.episode.note_bug(error)
        if error is not None or task.cancelled():
            turn.task = None  # the exception would keep the whole request in memory
            if turn in self.requested and getattr(error, "status", 500) < _RETRIED_STATUS:
                self.requested.remove(turn)


class GatewayServer(ABC):
    """Serves all APIs under one path; `find` tells which episode a request is for."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._runner: web.AppRunner | None = None
        self._strangers: Strangers | None = None

    @abstractmethod
    def find(self, http: web.Request) -> _Route:
        """The episode that a request is for; raises a `Refusal`."""

    async def start(self, listener: socket.socket) -> None:
        """Serve requests from a listening socket, which `stop` closes."""
        app = web.Application()
        root = self._root
        app.add_routes(
            [
                web.get("/health", _health),
                web.post(f"{root}/chat/completions", self._handler(_CHAT, self._turn)),
                web.post(f"{root}/responses", self._handler(_RESPONSES, self._turn)),
                web.post(f"{root}/messages", self._handler(_MESSAGES, self._turn)),
                web.post(f"{root}/messages/count_tokens", self._handler(_MESSAGES, self._count)),
                web.post(f"{root}/reward", self._handler(_CHAT, self._reward)),
                web.get(f"{root}/models", self._handler(_CHAT, self._models)),
                web.route("*", f"{root}/{{path:.*}}", self._handler(_CHAT, _no_route)),
                web.route("*", "/{path:.*}", self._handler(_CHAT, _no_route)),
            ]
        )
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server is not None
        self._strangers = Strangers(self._runner.server, _http_logger)
        await self._strangers.listen(listener)

    async def stop(self) -> None:
        """Close all connections."""
        runner, self._runner = self._runner, None
        if self._strangers is not None:
            self._strangers.close()
        if runner is not None:
            await runner.cleanup()

    def _handler(
        self, dialect: APIDialect, answer: Callable[[web.Request, _Route, APIDialect], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]:
        """Find the episode, answer, and write errors in the dialect's form."""

        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                route = self.find(http)
                if self._strangers is not None:
                    self._strangers.admit(http.protocol)
                return await _answer_recorded(route, partial(answer, http), dialect)
            except Refusal as refusal:
                return _json(dialect.write_error(refusal), refusal.status)
            except ConnectionError:  # the client has left
                return web.Response(status=499)
            except Exception as error:
                logger.exception("The gateway failed.")
                why = str(internal_error(error)) if is_ours(error) else describe_failure("The gateway", error)
                return _json(dialect.write_error(Refusal(why, status=500)), 500)

        return handle

    async def _turn(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        try:
            body, request = await route.read(http, dialect)
        except ContextTooLong as refusal:
            route.episode.note_too_long(refusal)
            raise
        task = route.turn_for(http, body, request)
        if request.stream:
            return await _stream(http, route, dialect, request, task)
        served = await route.result(task)
        response = _json(dialect.write(served.reply, request))
        async with _delivery(http, served):
            await response.prepare(http)
            await response.write_eof()
        return response

    async def _count(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        _, request = await route.read(http, dialect)
        return _json(write_token_count(route.episode.count_tokens(request)))

    async def _reward(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        sent = decode_body(await _body(http, route.episode.context), float | _Reward)  # pyright: ignore[reportArgumentType]
        reward = _Reward(sent) if isinstance(sent, float) else sent
        route.reward(reward, http.headers.get("Idempotency-Key", ""))
        return _json(b"{}")

    async def _models(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        name = route.episode.model_name
        model = {"id": name, "object": "model", "created": 0, "owned_by": "turnsmith", "type": "model"}
        model |= {"display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        page = {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
        return _json(orjson.dumps(page))


async def _answer_recorded(
    route: _Route, answer: Callable[[_Route, APIDialect], Awaitable[web.StreamResponse]], dialect: APIDialect
) -> web.StreamResponse:
    """Answer a request; the episode records refusals and bugs."""
    try:
        return await answer(route, dialect)
    except Refusal as refusal:
        if isinstance(refusal, ContextTooLong):
            await route.pause()
        elif refusal is not route.over:
            route.episode.note_refused(refusal)
        raise
    except Exception as error:
        if is_ours(error):
            route.episode.note_bug(error)
        raise


class _EpisodeServer(GatewayServer):
    """Serves the episodes of one event loop, each at a URL of its own; `serve_episode` starts it."""

    def __init__(self) -> None:
        super().__init__("/e/{secret}/v1")
        self.routes: dict[str, _Route] = {}
        self.lock = asyncio.Lock()
        self.port = 0

    def find(self, http: web.Request) -> _Route:
        route = self.routes.get(http.match_info.get("secret", ""))
        if route is None:
            raise Refusal("There is no such episode, or it is over.", status=404)
        return route


class ModelServer(GatewayServer):
    """Serves one model to all clients with the key, as `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    def __init__(self, episode: ServedEpisode, key: str) -> None:
        super().__init__("/v1")
        self._route = _Route(episode, Refusal("The server is stopping.", status=503), is_shared=True)
        self._key = key.encode()

    def find(self, http: web.Request) -> _Route:
        """The model, if the key is right."""
        bearer = http.headers.get("Authorization", "").removeprefix("Bearer ")
        key = http.headers.get("X-Api-Key") or bearer
        if not hmac.compare_digest(key.strip().encode("utf-8", "replace"), self._key):
            raise Refusal("The API key is missing or wrong. The server prints the key when it starts.", status=401)
        return self._route

    async def stop(self) -> None:
        """Stop serving, and cancel the turns that are being sampled."""
        self._route.end()  # while clients are connected, so that they get an error
        await super().stop()
        self._route.end()  # turns that were requested meanwhile
        await asyncio.gather(*self._route.tasks, return_exceptions=True)


@asynccontextmanager
async def serve_episode(episode: ServedEpisode) -> AsyncGenerator[tuple[str, str]]:
    """Serve an episode while the context lasts; yields the URL of its model, and its secret."""
    loop = asyncio.get_running_loop()
    server = _servers.get(loop)
    if server is None:
        server = _servers[loop] = _EpisodeServer()
    secret, route = secrets.token_urlsafe(24), _Route(episode, Refusal("The episode is over.", status=404))
    async with server.lock:
        if not server.routes:
            listener = socket.create_server(("127.0.0.1", 0))
            server.port = int(listener.getsockname()[1])
            await server.start(listener)
        server.routes[secret] = route
    try:
        yield f"http://127.0.0.1:{server.port}/e/{secret}/v1", secret
    finally:
        server.routes.pop(secret)
        route.end()
        async with server.lock:
            if not server.routes:
                await server.stop()


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, _EpisodeServer] = WeakKeyDictionary()


async def _body(http: web.Request, context: int) -> bytes:
    most, body = context * BYTES_PER_TOKEN + MOST_EXTRA_BYTES, bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in http.content.iter_any():
                body += part
                if len(body) > most:
                    advice = f"The request has more than {most:,} bytes. The run's settings limit the context."
                    raise ContextTooLong(len(body) // BYTES_PER_TOKEN, context, advice)
            return bytes(body)
    except web.RequestPayloadError as error:
        raise Refusal(f"The request cannot be read: {error}") from None
    except TimeoutError:
        raise Refusal(f"The request did not arrive within {BODY_SECONDS:g} seconds.", status=408) from None


async def _stream(
    http: web.Request, route: _Route, dialect: APIDialect, request: ModelRequest, task: asyncio.Task[ServedTurn]
) -> web.StreamResponse:
    """Send a turn as events, once it is complete: an agent must not act on half a turn."""
    await asyncio.wait((task,), timeout=KEEP_ALIVE_SECONDS)
    if task.done():
        await route.result(task)  # an early error becomes an ordinary response
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(http)
    while not task.done():
        await response.write(b": waiting for the model\n\n")
        await asyncio.wait((task,), timeout=KEEP_ALIVE_SECONDS)
    try:
        served = await route.result(task)
    except Refusal as refusal:
        await response.write(dialect.error_event(refusal))
        await response.write_eof()
        return response
    async with _delivery(http, served):
        await response.write(b"".join(dialect.events(served.reply, request)))
        await response.write_eof()
    return response


@asynccontextmanager
async def _delivery(http: web.Request, served: ServedTurn) -> AsyncGenerator[None]:
    """Mark a turn as delivered before it is sent, because the agent may answer at once; undo that if sending fails."""
    was_delivered, may_be_gone = served.turn.is_delivered, may_have_left(http)
    served.turn.is_delivered = True
    try:
        yield
        if may_be_gone and not await has_arrived(http):
            served.turn.is_delivered = was_delivered
    except BaseException:
        served.turn.is_delivered = was_delivered
        raise


async def _health(http: web.Request) -> web.Response:
    return web.Response()  # needs no key


async def _no_route(http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
    raise Refusal(
        f"There is no /{http.match_info['path'][:80]} here: the model's URL offers chat/completions, responses and "
        "messages.",
        status=404,
    )


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
