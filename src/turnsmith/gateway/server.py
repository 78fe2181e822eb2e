"""The HTTP server of the gateway: one for each event loop that runs episodes, on loopback, while there are any.

The secret in an episode's route is also the right to use it: an agent can reach its own episode and nothing else, and
after the episode's end not even that.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import orjson
from aiohttp import web

from turnsmith.errors import describe_failure
from turnsmith.gateway.dialects import AnthropicMessages, APIDialect, ChatCompletions, Responses
from turnsmith.gateway.dialects.anthropic_messages import write_token_count
from turnsmith.gateway.dialects.base import KnownMessages, decode_body
from turnsmith.gateway.request import ModelRequest, Refusal
from turnsmith.gateway.served import ServedEpisode, ServedTurn

logger = logging.getLogger(__name__)
# aiohttp writes a traceback for each request that is not HTTP; an agent could fill the log with them.
_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.setLevel(logging.CRITICAL)

MAX_BODY_BYTES = 32 * 2**20
"""Larger requests are refused."""
BODY_SECONDS = 30.0
"""For a request's body to arrive; then the request is refused."""
KEEP_ALIVE_SECONDS = 10.0
"""A stream that waits for the model sends a comment so often, which keeps clients from giving up."""
_CHAT, _RESPONSES, _MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()


class _Reward(msgspec.Struct):
    value: float
    turn: int | None = None


@dataclass
class _Route:
    """One episode on the server, with the turns that it was asked for."""

    episode: ServedEpisode
    asked: dict[tuple[str, int, int], asyncio.Task[ServedTurn]] = field(
        default_factory=dict[Any, "asyncio.Task[ServedTurn]"]
    )
    """The last turn asked for with each body."""
    keys: set[str] = field(default_factory=set[str])
    known: defaultdict[str, KnownMessages] = field(default_factory=lambda: defaultdict(KnownMessages))
    """What was read already, by dialect."""
    tasks: set[asyncio.Task[ServedTurn]] = field(default_factory=set["asyncio.Task[ServedTurn]"])

    def ask(self, http: web.Request, body: bytes, request: ModelRequest) -> asyncio.Task[ServedTurn]:
        """Begin a turn; a client that repeats a request, because it saw no answer, gets the same one."""
        digest = (http.path, len(body), hash(body))  # of a large history, a cryptographic one takes the most time
        key = http.headers.get("Idempotency-Key", "")
        retries = http.headers.get("X-Stainless-Retry-Count", "0")
        is_retry = (key and key in self.keys) or retries not in ("", "0")
        known = self.asked.get(digest)
        if is_retry and known is not None and not (known.done() and (known.cancelled() or known.exception())):
            return known
        if key:
            self.keys.add(key)
        # A task of its own: the turn goes on if the client leaves, and is there when it asks again.
        task = asyncio.get_running_loop().create_task(self.episode.take_turn(request))
        self.asked[digest] = task
        self.tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[ServedTurn]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, though the client that asked may be gone


class GatewayServer:
    """Serves the episodes of one event loop; `serve_episode` starts it."""

    def __init__(self) -> None:
        self.routes: dict[str, _Route] = {}
        self.lock = asyncio.Lock()
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on loopback, on any free port."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        root = "/e/{secret}/v1"
        app.add_routes(
            [
                web.post(f"{root}/chat/completions", self._handler(_CHAT, self._turn)),
                web.post(f"{root}/responses", self._handler(_RESPONSES, self._turn)),
                web.post(f"{root}/messages", self._handler(_MESSAGES, self._turn)),
                web.post(f"{root}/messages/count_tokens", self._handler(_MESSAGES, self._count)),
                web.post(f"{root}/reward", self._handler(_CHAT, self._reward)),
                web.get(f"{root}/models", self._handler(_CHAT, self._models)),
                web.route("*", "/{path:.*}", self._handler(_CHAT, _no_route)),
            ]
        )
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=0.1, logger=_http_logger
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close all connections."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _handler(
        self, dialect: APIDialect, answer: Callable[[web.Request, _Route, APIDialect], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]:
        """Find the episode, answer, and write what goes wrong in the dialect's own form."""

        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                route = self.routes.get(http.match_info.get("secret", ""))
                if route is None:
                    raise Refusal("There is no such episode, or it is over.", status=404)
                return await answer(http, route, dialect)
            except Refusal as refusal:
                return _json(dialect.write_error(refusal), refusal.status)
            except ConnectionError:  # the client has left: there is nobody to answer
                return web.Response(status=499)
            except Exception as error:
                logger.exception("The gateway failed.")
                return _json(dialect.write_error(Refusal(describe_failure("The gateway", error), status=500)), 500)

        return handle

    async def _turn(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        body = await _body(http)
        request = dialect.read(body, route.known[dialect.name])
        task = route.ask(http, body, request)
        if request.stream:
            return await _stream(http, dialect, request, task)
        served = await _result(task)
        response = _json(dialect.write(served.reply, request))
        async with _delivery(served):
            await response.prepare(http)
            await response.write_eof()
        return response

    async def _count(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        request = dialect.read(await _body(http), route.known[dialect.name])
        return _json(write_token_count(route.episode.count_tokens(request)))

    async def _reward(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        given = decode_body(await _body(http), float | _Reward)  # pyright: ignore[reportArgumentType]
        reward = _Reward(given) if isinstance(given, float) else given
        route.episode.add_reward(reward.value, reward.turn)
        return _json(b"{}")

    async def _models(self, http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
        name = route.episode.model_name
        model = {"id": name, "object": "model", "created": 0, "owned_by": "turnsmith", "type": "model"}
        model |= {"display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        page = {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
        return _json(orjson.dumps(page))


@asynccontextmanager
async def serve_episode(episode: ServedEpisode) -> AsyncGenerator[tuple[str, str]]:
    """Serve an episode while the context lasts; gives the URL of its model, and its secret."""
    loop = asyncio.get_running_loop()
    server = _servers.get(loop)
    if server is None:
        server = _servers[loop] = GatewayServer()
    secret, route = secrets.token_urlsafe(24), _Route(episode)
    async with server.lock:
        if not server.routes:
            await server.start()
        server.routes[secret] = route
    try:
        yield f"http://127.0.0.1:{server.port}/e/{secret}/v1", secret
    finally:
        server.routes.pop(secret)
        for task in list(route.tasks):
            task.cancel()
        async with server.lock:
            if not server.routes:
                await server.stop()


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, GatewayServer] = WeakKeyDictionary()


async def _body(http: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise Refusal(f"The request is larger than {MAX_BODY_BYTES:,} bytes.", status=413) from None
    except web.RequestPayloadError as error:
        raise Refusal(f"The request cannot be read: {error}") from None
    except TimeoutError:
        raise Refusal(f"The request did not arrive within {BODY_SECONDS:g} seconds.", status=408) from None


async def _result(task: asyncio.Task[ServedTurn]) -> ServedTurn:
    """Wait for a turn, which goes on if whoever waits is cancelled."""
    await asyncio.wait((task,))
    if task.cancelled():
        raise Refusal("The episode is over.", status=404)
    return task.result()


async def _stream(
    http: web.Request, dialect: APIDialect, request: ModelRequest, task: asyncio.Task[ServedTurn]
) -> web.StreamResponse:
    """Send a turn as events. It is sampled whole, because an agent may not act on half a turn."""
    await asyncio.wait((task,), timeout=KEEP_ALIVE_SECONDS)
    if task.done():
        await _result(task)  # an error that is known by now is an ordinary response
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(http)
    while not task.done():
        await response.write(b": waiting for the model\n\n")
        await asyncio.wait((task,), timeout=KEEP_ALIVE_SECONDS)
    try:
        served = await _result(task)
    except Refusal as refusal:
        await response.write(dialect.error_event(refusal))
        await response.write_eof()
        return response
    async with _delivery(served):
        await response.write(b"".join(dialect.events(served.reply, request)))
        await response.write_eof()
    return response


@asynccontextmanager
async def _delivery(served: ServedTurn) -> AsyncGenerator[None]:
    """Mark a turn as delivered unless sending it fails; before, because the agent may be quicker than this task."""
    was_delivered = served.turn.is_delivered
    served.turn.is_delivered = True
    try:
        yield
    except BaseException:
        served.turn.is_delivered = was_delivered
        raise


async def _no_route(http: web.Request, route: _Route, dialect: APIDialect) -> web.StreamResponse:
    raise Refusal("There is no such route.", status=404)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
