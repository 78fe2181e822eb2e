"""`turnsmith serve --environment`: an environment of one's own behind OpenEnv's protocol.

`openenv://host:port` plays it, and so do OpenEnv's clients. A WebSocket connection is a session, which has one
environment at a time, in a worker process of this machine. Nothing that a client sends is unpickled or imported.

What OpenEnv has no field for is in the `metadata` of an answer, where its clients ignore it: `opening`, the messages
before the first observation, and `truncated`. The `_meta` of a tool says that its calls are no steps.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from turnsmith.env.adapters.openenv_tools import CAPACITY, INVALID, LIST_ACTION, NO_STEP
from turnsmith.env.isolation.remote_host import RemoteHost
from turnsmith.env.isolation.settings import OWN
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure, describe_failure, internal_error, is_ours
from turnsmith.gateway.strangers import Strangers
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import TIMED_OUT, ToolRegistry
from turnsmith.tools.step_result import StepResult

logger = logging.getLogger(__name__)
# aiohttp writes a traceback for each request that is not HTTP; a stranger could fill the log with them.
_http_logger = logging.getLogger(f"{__name__}.http")
_http_logger.setLevel(logging.CRITICAL)

_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""In seconds, and how often: a client whose machine is gone leaves its session after two minutes."""
_MOST_BYTES = 20 * 2**20
"""Limit on one message of a client."""
_CALL = {
    "type": "object",
    "properties": {
        "type": {"const": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["type", "tool_name"],
}
_ACTION = {
    "title": "Turn",
    "description": "A turn of the model as a text; where the environment has tools, a CallToolAction as well.",
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "$defs": {"CallToolAction": _CALL},
}
_OBSERVATION = {"title": "Observation", "type": "object", "properties": {"text": {"type": "string"}}}
_STATE = {"title": "State", "type": "object", "properties": {"step_count": {"type": "integer"}}}
_SCHEMAS = {"action": _ACTION, "observation": _OBSERVATION, "state": _STATE}


class _Message(msgspec.Struct):
    type: str
    data: dict[str, Any] = {}


class _BadAction(Exception):
    """The client's mistake, as a sentence."""


class EnvironmentServer:
    """Serves one environment to all clients that know the token.

    Args:
        spec: The environment to serve.
        token: What clients send as `Authorization: Bearer TOKEN`; empty: nothing.
        sessions: How many sessions there may be at the same time.
        idle_seconds: A session that is silent for so long has ended.

    Raises:
        ConfigError: It is no single environment that is played in turns.
    """

    def __init__(
        self, spec: EnvironmentSpec, *, token: bytes = b"", sessions: int = 128, idle_seconds: float = 1800.0
    ) -> None:
        if spec.member_for("", 0) is not None:
            raise ConfigError(f"{spec.name} is a mix of environments: serve each of them, in a server of its own.")
        if spec.is_agent:
            raise ConfigError(f"{spec.name} is an agent, which asks the model itself: run it where the model is.")
        self._spec = spec if spec.mode == OWN else replace(spec, isolation="process")
        self._token, self._most, self._idle_seconds = token, sessions, idle_seconds
        self._sessions = 0
        self._runner: web.AppRunner | None = None
        self._strangers: Strangers | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve clients from a listening socket, which `stop` closes."""
        for option, value in _KEEPALIVE.items():  # connections have what their listener has; aiohttp switches it on
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        app = web.Application()
        routes = {"/health": self._health, "/schema": self._schema, "/ws": self._talk}
        app.add_routes([web.get(path, self._for_friends(answer)) for path, answer in routes.items()])
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server is not None
        self._strangers = Strangers(self._runner.server, _http_logger)
        await self._strangers.listen(listener)

    async def stop(self) -> None:
        """Close all connections."""
        if self._strangers is not None and self._runner is not None:
            self._strangers.close()
            await self._runner.cleanup()

    def _for_friends(
        self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(http: web.Request) -> web.StreamResponse:
            if "Origin" in http.headers:  # without a token, any page in a browser of this machine could play
                raise web.HTTPForbidden(text="This server is not for web pages.")
            given = http.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            if self._token and not hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
                raise web.HTTPUnauthorized(text="The token is missing or wrong.")
            if self._strangers is not None:
                self._strangers.admit(http.protocol)
            return await answer(http)

        return handle

    async def _health(self, http: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _schema(self, http: web.Request) -> web.Response:
        return web.json_response(_SCHEMAS)

    async def _talk(self, http: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(max_msg_size=_MOST_BYTES, compress=False)
        await connection.prepare(http)
        if self._sessions >= self._most:
            why = f"All {self._most} sessions are taken. Start the server with more --sessions."
            full = _error(CAPACITY, why, max_sessions=self._most, active_sessions=self._sessions)
            await connection.send_str(_text(full))
            return connection
        self._sessions += 1
        session = _Session(self._spec)
        try:
            await self._answer_all(connection, session)
        finally:
            await session.close()
            self._sessions -= 1
        return connection

    async def _answer_all(self, connection: web.WebSocketResponse, session: _Session) -> None:
        """Answer one message after another, until the client leaves or is silent for too long."""
        answering: asyncio.Task[None] | None = None
        try:
            while True:
                is_busy = answering is not None and not answering.done()
                try:
                    # Also during a call, because only whoever receives answers pings, and sees that a client is gone.
                    message = await connection.receive(self._idle_seconds)
                except TimeoutError:
                    if is_busy:
                        continue
                    return
                if answering is not None and message.type is WSMsgType.TEXT:
                    await answering
                if message.type is not WSMsgType.TEXT or connection.closed:
                    return
                answering = asyncio.get_running_loop().create_task(_answer(connection, session, message.data))
        finally:
            if answering is not None:
                answering.cancel()
                await asyncio.wait((answering,))


async def _answer(connection: web.WebSocketResponse, session: _Session, text: str) -> None:
    reply = await session.answer(text)
    with suppress(ConnectionError):  # the client has left
        await (connection.close() if reply is None else connection.send_str(_text(reply)))


class _Session:
    """A connection's episodes, one after another, each in a fresh environment."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._host: RemoteHost | None = None
        self._tools = ToolRegistry()
        self._state: dict[str, Any] = {"episode_id": None, "step_count": 0}

    async def answer(self, text: str) -> dict[str, Any] | None:
        """The reply to a message, which may be an error; None: the client has closed the session."""
        try:
            message = msgspec.json.decode(text, type=_Message)
            if message.type == "close":
                return None
            return await self._answer(message)
        except _BadAction as error:
            return _error(INVALID, "Invalid message", errors=[{"loc": [], "msg": str(error)}])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _error("INVALID_JSON", f"This is not a message: {error}")
        except EnvironmentFailure as error:
            return _error("EXECUTION_ERROR", str(error), kind=type(error).__name__)
        except Exception as error:
            logger.exception("The environment server failed.")
            why = str(internal_error(error)) if is_ours(error) else describe_failure("The environment server", error)
            return _error("EXECUTION_ERROR", why)

    async def close(self) -> None:
        """Close the environment. Never raises."""
        host, self._host = self._host, None
        if host is not None:
            await host.close()

    async def _answer(self, message: _Message) -> dict[str, Any]:
        match message.type:
            case "reset":
                return _observed(*await self._reset(message.data))
            case "step":
                return _observed(*await self._step(message.data))
            case "state":
                return {"type": "state", "data": self._state}
            case "mcp" if message.data.get("method") == "tools/list":
                listed = {"tools": self._list_tools("inputSchema")}
                return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": message.data.get("id"), "result": listed}}
            case "mcp":
                refused = {"code": -32601, "message": "Call a tool by a step: its action is call_tool."}
                return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": message.data.get("id"), "error": refused}}
            case unknown:
                return _error("UNKNOWN_TYPE", f"Unknown message type: {unknown[:80]}")

    async def _reset(self, data: dict[str, Any]) -> tuple[dict[str, Any], StepResult]:
        seed, episode = data.pop("seed", None), data.pop("episode_id", None)
        if seed is not None and (not isinstance(seed, int) or seed < 0):
            raise _BadAction("The seed must be an integer of at least 0.")
        await self.close()
        host = RemoteHost(self._spec)
        self._host, self._state = host, {"episode_id": episode, "step_count": 0}
        observation = await host.reset(secrets.randbelow(2**31) if seed is None else seed, data or None)
        self._tools = ToolRegistry(host.tools())
        system = [{"role": "system", "content": host.prompt_prefix()}] if host.prompt_prefix() else []
        opening = [*system, *({"role": role, "content": content} for role, content in host.examples)]
        return {"text": observation}, StepResult(observation, info={"opening": opening} if opening else {})

    async def _step(self, data: dict[str, Any]) -> tuple[dict[str, Any], StepResult]:
        host = self._host
        if host is None:
            raise EnvironmentFailure("No episode has begun: send a reset first.")
        if data.get("type") == LIST_ACTION["type"]:
            return {"tools": self._list_tools("input_schema")}, StepResult("")
        if data.get("type") == "call_tool":
            return await self._call(host, data.get("tool_name"), data.get("arguments", {}))
        if not isinstance(data.get("text"), str):
            raise _BadAction("text: Field required, a string")
        self._state["step_count"] += 1
        result = await host.step(data["text"])
        return {"text": result.observation}, result

    async def _call(self, host: RemoteHost, name: Any, arguments: Any) -> tuple[dict[str, Any], StepResult]:
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise _BadAction("A call has a tool_name, a string, and arguments, an object")
        called = await self._tools.call(ToolCall(name, arguments), episode_id=str(self._state["episode_id"] or ""))
        result = called.step or StepResult("", terminated=await host.is_over())
        self._state["step_count"] += called.step is not None
        if called.ok or called.step is not None:
            text = called.text if called.step is None else result.observation  # which whoever plays cuts
            return {"tool_name": name, "result": text, "error": None}, result
        kind = "timeout" if called.text == TIMED_OUT else "execution_error"
        result.info = {"failure": called.failure} if called.failure else {}
        error = {"error_type": kind, "message": called.text}
        return {"tool_name": name, "result": None, "error": error}, result

    def _list_tools(self, schema: str) -> list[dict[str, Any]]:
        return [
            {
                "name": tool.definition.name,
                "description": tool.definition.description,
                schema: tool.definition.parameters,
                **({} if tool.is_step else {"_meta": {NO_STEP: True}}),
            }
            for tool in self._tools
        ]


def _observed(observation: dict[str, Any], result: StepResult) -> dict[str, Any]:
    metadata = {**result.info, **({"truncated": True} if result.truncated else {})}
    done = result.terminated or result.truncated
    data = {"observation": observation, "reward": result.reward, "done": done, "metadata": metadata}
    return {"type": "observation", "data": data}


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


def _text(reply: dict[str, Any]) -> str:
    return msgspec.json.encode(reply).decode()
