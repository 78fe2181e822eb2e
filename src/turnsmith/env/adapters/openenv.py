"""Environments behind an OpenEnv server: `openenv://localhost:8000`. Speaks its WebSocket protocol and imports nothing
of it, because its pinned versions are not ours.

Each episode is one connection, which is one session of the server. A connection that is lost fails the episode, and the
failure policy plays it again from its start: no step is repeated or skipped silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnsmith.concurrency.clocks import Bottleneck, waiting
from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.openenv_tools import (
    CAPACITY,
    INVALID,
    LIST_ACTION,
    LIST_REQUEST,
    error_of,
    has_no_fields,
    is_tool_call,
    read_call,
    read_tools,
    result_text,
)
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentTimeout,
    MissingDependency,
    Overloaded,
    ToolError,
    WorkerLost,
)
from turnsmith.importing import install_line
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.execution import ToolTimeout
from turnsmith.tools.step_result import MOST_TEXT
from turnsmith.tools.tool import Tool

_Place = tuple[str, asyncio.AbstractEventLoop]
_rooms: dict[_Place, tuple[int, asyncio.Semaphore]] = {}
"""How many sessions a server that had no room for one has, and the turns of those who play there."""
_FIRST_RETRY_SECONDS = 0.1
_RETRY_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_MAX_MESSAGE_BYTES = 32 * 1024 * 1024
_MAX_DATA_BYTES = 2**20
"""Limit on all but the observation, which has its own: the same as for what leaves a worker process."""
_LEAST_TOKEN = 16
_FAULTS = {fault.__name__: fault for fault in (EnvironmentTimeout, Overloaded, WorkerLost)}
"""What a server of turnsmith says of the fault of an environment."""
_action_schemas: dict[str, dict[str, Any]] = {}
"""By the server's URL."""


class OpenEnvEnvironment(BaseEnvironment):
    """One session of an OpenEnv server.

    The model's turn becomes the action. If the server's actions are calls of MCP tools, the model calls those. If its
    action has one field that a text can be, the turn is that field; otherwise it is a JSON object, and the prompt has
    its schema. What the model is shown is the result of its call, or the observation's only field, or all of them, a
    line each.

    Args:
        address: `openenv://host:port`, or a URL with http, https, ws or wss.
        config: `environment.action_field` and `environment.observation_field` name the fields to use, and
            `environment.token_file` the file with the token of the server, if it needs one; other settings of your own
            are arguments of the environment's `reset`.
    """

    def __init__(self, address: str, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.url = _base_url(address)
        self.reset_arguments = self.config.own_settings()
        self.action_field: str | None = self.reset_arguments.pop("action_field", None)
        self.observation_field: str | None = self.reset_arguments.pop("observation_field", None)
        self._token = read_token(self.reset_arguments.pop("token_file", ""))
        self.action_schema: dict[str, Any] = {}
        self._session: Any = None
        self._socket: Any = None
        self._turn: asyncio.Semaphore | None = None

    async def reset(self, seed: int = 0, task: Mapping[str, Any] | None = None) -> Any:
        """Open a session, waiting until the server has room for one."""
        if self.url not in _action_schemas:  # the same for all sessions of a server
            _action_schemas[self.url] = await self._get_action_schema()
        self.action_schema = _action_schemas[self.url]
        if self.action_field is None:
            self.action_field = _text_field(self.action_schema)
        data = {"seed": seed, **self.reset_arguments, **(task or {})}
        place = (self.url, asyncio.get_running_loop())
        answer = await self._open(data) if place not in _rooms else {"code": CAPACITY, "max_sessions": _rooms[place][0]}
        if answer.get("code") == CAPACITY:
            full = Bottleneck(f"one of {answer.get('max_sessions', 'the')} sessions of {self.url}", _MORE_SESSIONS)
            async with waiting(full):
                await self._take_turn(place, int(answer.get("max_sessions") or 1))
                answer = await self._wait_for_room(data)
        if "code" in answer:
            raise self._fault("did not start an episode", answer)
        tools = await self._list_tools()
        self.step_tools = [tool for tool, is_step in tools if is_step]
        self._tools_of_server = [_ServerTool(tool, self) for tool, is_step in tools if not is_step]
        observation, metadata = _mapping(answer, "observation"), dict(_mapping(answer, "metadata"))
        opening = metadata.pop("opening", None)
        if tools and not _fields_as_text(observation):  # its protocol has no field for a task
            observation = metadata
        shown = self._show(observation)
        return [*opening, {"role": "user", "content": shown}] if isinstance(opening, list) else shown

    def get_prompt_prefix(self) -> str:
        """The action's schema, unless it is only a text."""
        if self.action_field is not None or self.step_tools:
            return ""
        schema = json.dumps({name: value for name, value in self.action_schema.items() if name != "title"})
        return f"Answer with nothing but a JSON object with this schema: {schema}"

    async def step(self, action: str) -> tuple[Any, ...]:
        """Do the model's action; if the server can't read it, say so."""
        data: Any = read_call(action) if self.step_tools else None
        is_call = data is not None
        if not is_call and self.action_field is not None:
            data = {self.action_field: action}
        elif not is_call and self.step_tools:
            names = ", ".join(tool.name for tool in self.step_tools)
            return f"Call one of the tools: {names}.", 0.0, False, {"invalid_action": True}
        elif not is_call:
            try:
                data = json.loads(action)
            except (ValueError, RecursionError) as error:
                return f"This is not a JSON object: {error}.", 0.0, False, {"invalid_action": True}
            if not isinstance(data, dict):
                return "This is not a JSON object.", 0.0, False, {"invalid_action": True}
        answer = await self._ask("step", data)
        if answer.get("code") == INVALID:
            return _what_is_wrong(answer), 0.0, False, {"invalid_action": True}
        if "code" in answer:
            raise self._fault("failed in step", answer)
        info, observation = dict(_mapping(answer, "metadata")), _mapping(answer, "observation")
        shown = self._show_result(observation, info) if is_call else self._show(observation)
        reward, done = answer.get("reward"), answer.get("done")
        reward = 0.0 if reward is None else reward
        if done is True and info.get("truncated") is True:
            del info["truncated"]
            return shown, reward, False, True, info
        # The host reads or refuses other types: `bool("false")` is True.
        return shown, reward, False if done is None else done, info

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the server whose calls are no steps."""
        answer = await self._ask("step", {"type": "call_tool", "tool_name": name, "arguments": arguments})
        if answer.get("code") == INVALID:
            raise ToolError(_what_is_wrong(answer))
        if "code" in answer:
            raise self._fault(f"failed in {name}", answer)
        self.done = self.done or answer.get("done") is True
        observation, failure = _mapping(answer, "observation"), _mapping(answer, "metadata").get("failure")
        kind, message = error_of(observation)
        if kind == "timeout":
            raise ToolTimeout
        if failure:
            raise EnvironmentFailure(str(failure))
        if kind:
            raise ToolError(message)
        return result_text(observation.get("result"))

    async def close(self) -> None:
        """End the session."""
        socket, self._socket = self._socket, None
        session, self._session = self._session, None
        with contextlib.suppress(Exception):  # the server may be gone, and ends sessions without a connection
            if socket is not None:
                await socket.send_json({"type": "close"})
                await asyncio.wait_for(socket.close(), _CLOSE_SECONDS)
        if session is not None:
            await session.close()
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.release()

    async def _get_action_schema(self) -> dict[str, Any]:
        try:
            async with self._http().get(f"{self.url}/schema", headers={"Accept-Encoding": "identity"}) as answer:
                answer.raise_for_status()
                return _action_schema(json.loads(await _body(answer)))
        except (_aiohttp().ClientError, OSError, ValueError, RecursionError) as error:
            raise EnvironmentFailure(f"{self.url} does not answer as an OpenEnv server: {error}") from error

    async def _list_tools(self) -> list[tuple[ToolDefinition, bool]]:
        is_call = is_tool_call(self.action_schema)
        tools = read_tools((await self._ask("step", LIST_ACTION)).get("observation")) if is_call else []
        if not tools and (is_call or has_no_fields(self.action_schema)):
            tools = read_tools((await self._ask("mcp", LIST_REQUEST)).get("result"))
        if is_call and not tools and self.action_field is None:
            raise EnvironmentFailure(f"{self.url} takes calls of tools, but lists none.")
        return tools

    def _fault(self, what: str, answer: Mapping[str, Any]) -> EnvironmentFailure:
        fault = _FAULTS.get(str(answer.get("kind")), EnvironmentFailure)
        return fault(f"{self.url} {what}: {answer['code']}: {answer.get('message')}")

    async def _take_turn(self, place: _Place, sessions: int) -> None:
        """Wait until those before have closed their sessions: asking the server again and again takes seconds."""
        if self._turn is None:
            turn = _rooms.setdefault(place, (sessions, asyncio.Semaphore(sessions)))[1]
            await turn.acquire()
            self._turn = turn

    async def _wait_for_room(self, data: dict[str, Any]) -> dict[str, Any]:
        pause = _FIRST_RETRY_SECONDS
        while True:
            answer = await self._open(data)
            if answer.get("code") != CAPACITY:
                return answer
            await asyncio.sleep(pause)
            pause = min(2 * pause, _RETRY_SECONDS)

    async def _open(self, data: dict[str, Any]) -> dict[str, Any]:
        """Connect and reset; returns the first observation, or an error."""
        if self._socket is not None:
            await self._socket.close()
        try:
            # Without pings, because a server that waits for a slow simulator may not answer them.
            url = "ws" + self.url.removeprefix("http") + "/ws"
            self._socket = await self._http().ws_connect(url, max_msg_size=_MAX_MESSAGE_BYTES)
        except (_aiohttp().ClientError, OSError) as error:
            raise EnvironmentFailure(f"Could not connect to {self.url}: {error!r}") from error
        return await self._ask("reset", data)

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if self._socket is None:
            raise EnvironmentFailure(f"{kind} was called before reset or after close.")
        try:
            await self._socket.send_json({"type": kind, "data": data})
            text = await self._socket.receive_str()
            data = dict(json.loads(text)["data"])
        except asyncio.CancelledError:
            self._socket = None  # its answer, which is late, must not be taken for that of the next message
            raise
        except (_aiohttp().ClientError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise EnvironmentFailure(f"The connection to {self.url} was lost in {kind}: {error!r}") from error
        rest = {name: value for name, value in data.items() if name != "observation"} if kind != "mcp" else data
        if len(text) > _MAX_DATA_BYTES and (size := len(json.dumps(rest))) > _MAX_DATA_BYTES:
            raise EnvironmentFailure(
                f"{self.url} sent {size:,} bytes beside the observation of a {kind}; the limit is {_MAX_DATA_BYTES:,}."
            )
        return data

    def _http(self) -> Any:
        if self._session is None:
            trace = _aiohttp().TraceConfig()
            trace.on_request_redirect.append(_refuse_redirect)
            # Not decompressed, because a few bytes may expand to gigabytes.
            self._session = _aiohttp().ClientSession(
                headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
                trust_env=True,
                auto_decompress=False,
                trace_configs=[trace],
            )
        return self._session

    def _show_result(self, observation: Mapping[str, Any], info: dict[str, Any]) -> str:
        kind, message = error_of(observation)
        if kind == "transport_error":
            raise EnvironmentFailure(f"{self.url} could not reach its own tools: {message}")
        if kind:
            info["invalid_action"] = True
            return message
        if observation.get("result") is not None:
            return result_text(observation["result"])
        fields = {name: value for name, value in observation.items() if name not in ("tool_name", "result", "error")}
        return _fields_as_text(fields) or "Done."

    def _show(self, observation: Mapping[str, Any]) -> str:
        if self.observation_field is not None:
            if self.observation_field not in observation:
                raise EnvironmentFailure(
                    f"The observation has no field {self.observation_field!r}, but {', '.join(observation)}: "
                    "set environment.observation_field to one of them."
                )
            return _as_text(observation[self.observation_field])
        return _fields_as_text(observation)


_MORE_SESSIONS = (
    "let the server allow more (`--sessions` of `turnsmith serve`, `max_concurrent_envs` of OpenEnv's `create_app`), "
    "or train with fewer at once"
)


class _ServerTool(Tool):
    """A tool of the server whose calls are no steps. The server keeps the limits on its time and its output."""

    grace = 60.0
    max_output_tokens = MOST_TEXT // 4

    def __init__(self, definition: ToolDefinition, environment: OpenEnvEnvironment) -> None:
        super().__init__(definition)
        self.time_limit = environment.config.call_seconds
        self._environment = environment

    async def execute(self, **arguments: Any) -> str:
        """Call the tool."""
        return await self._environment.call_tool(self.definition.name, arguments)


def read_token(path: str, *, create: bool = False) -> str:
    """The token in a file; without a file, none.

    Args:
        path: The file; empty: there is no token.
        create: Whether to write a new token, which only this user can read, if the file does not exist.

    Raises:
        ConfigError: The file cannot be read or written, or its token is short enough to be guessed.

    Example:
        >>> import tempfile
        >>> file = f"{tempfile.mkdtemp()}/token"
        >>> read_token(file, create=True) == read_token(file) != ""
        True
    """
    if not path:
        return ""
    file = Path(path).expanduser()
    try:
        if create and not file.exists():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
                new.write(secrets.token_urlsafe(32) + "\n")
        token = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"The token file {file} cannot be used: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        raise ConfigError(f"The token file {file} holds no token: it is not ASCII.") from None
    if len(token) < _LEAST_TOKEN or not token.isprintable():
        raise ConfigError(
            f"The token in {file} has {len(token)} characters; it needs at least {_LEAST_TOKEN}, in one line."
        )
    return token


def _base_url(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    schemes = {"openenv": "http", "http": "http", "https": "https", "ws": "http", "wss": "https"}
    if not separator or scheme not in schemes or not rest.strip("/"):
        raise ConfigError(f"{address} is not the address of an OpenEnv server: write openenv://host:port.")
    return f"{schemes[scheme]}://{rest.rstrip('/').removesuffix('/ws')}"


async def _refuse_redirect(session: Any, context: Any, request: Any) -> None:
    where = request.response.headers.get("Location", "")
    raise EnvironmentFailure(
        f"{request.url} redirects to {where[:200]}, which is not followed: give the address itself."
    )


async def _body(answer: Any) -> bytes:
    """The body of an answer, which the server was asked not to compress."""
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"its answer is compressed ({encoding[:20]}), though it was asked for one that is not")
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > _MAX_DATA_BYTES:
            raise ValueError(f"its schema has more than {_MAX_DATA_BYTES:,} bytes")
    return bytes(body)


def _action_schema(schemas: Any) -> dict[str, Any]:
    action = schemas.get("action") if isinstance(schemas, dict) else None
    if not isinstance(action, dict):
        raise ValueError("its schema has no action")
    required: Any = action.get("required", [])
    is_list_of_names = isinstance(required, list) and all(isinstance(name, str) for name in required)
    fields: Any = action.get("properties", {})
    if (
        not is_list_of_names
        or not isinstance(fields, dict)
        or not all(isinstance(one, dict) for one in fields.values())
    ):
        raise ValueError("the schema of its action is no JSON Schema of an object")
    return action


def _mapping(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field of an answer; empty if it is missing."""
    value = answer.get(name)
    if value is None and name != "observation":
        return {}
    if not isinstance(value, Mapping):
        raise EnvironmentFailure(f"The server's {name} is {str(value)[:80]!r}; it must be an object.")
    return value


def _text_field(schema: Mapping[str, Any]) -> str | None:
    """The field that the model's text becomes: the only required one, if it is a string and no name of a tool."""
    required, fields = schema.get("required", []), schema.get("properties", {})
    is_text = len(required) == 1 and fields.get(required[0], {}).get("type") == "string"
    return required[0] if is_text and required != ["tool_name"] else None


def _what_is_wrong(answer: Mapping[str, Any]) -> str:
    errors = answer.get("errors")
    details = [
        f"{'.'.join(map(str, place)) if isinstance(place := error.get('loc'), list) else ''}: {error.get('msg', '')}"
        for error in (errors if isinstance(errors, list) else ())
        if isinstance(error, Mapping)
    ]
    return f"The action is not valid: {'; '.join(details) or answer.get('message')}."


def _fields_as_text(observation: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in observation.items() if name != "metadata" and value not in (None, "")}
    if len(shown) == 1:
        return _as_text(*shown.values())
    return "\n".join(f"{name}: {_as_text(value)}" for name, value in shown.items())


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _aiohttp() -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise MissingDependency(
            f"Environments of an OpenEnv server need aiohttp: {install_line('openenv')}."
        ) from error
    return aiohttp
