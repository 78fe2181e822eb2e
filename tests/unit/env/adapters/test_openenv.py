"""What an OpenEnv server's address, actions and observations become; `tests/e2e/test_openenv.py` has a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnsmith import Chat, EnvironmentConfig, EnvironmentSpec, EpisodeStart, Outcome, ScriptedEngine, Trajectory
from turnsmith.env.adapters import openenv
from turnsmith.env.adapters.openenv import OpenEnvEnvironment
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.inference.engine import Sampling
from turnsmith.rollout.episode import run_episode
from turnsmith.rollout.spec import Limits


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("openenv://localhost:8000", "http://localhost:8000"),
        ("openenv:https://env.example.org/", "https://env.example.org"),
        ("ws://localhost:8000/ws", "http://localhost:8000"),
        ("wss://env.example.org/ws", "https://env.example.org"),
    ],
)
def test_each_form_of_an_address(target: str, url: str) -> None:
    spec = EnvironmentSpec.of(target)
    assert spec.build().url == url
    assert spec.isolated().mode == "thread", "its code runs on the server"
    assert "/" not in spec.name
    assert ":" not in spec.name


def test_what_is_no_address_is_refused() -> None:
    for wrong in ("openenv:localhost", "openenv://", "openenv:ftp://host"):
        with pytest.raises(ConfigError, match=r"write openenv://host:port"):
            EnvironmentSpec.of(wrong)


def test_a_server_that_is_not_there_is_a_fault() -> None:
    async def play() -> None:
        environment = OpenEnvEnvironment("openenv://127.0.0.1:9")
        try:
            await environment.reset()
        finally:
            await environment.close()

    with pytest.raises(EnvironmentFailure, match=r"http://127\.0\.0\.1:9 does not answer as an OpenEnv server"):
        asyncio.run(play())


def test_the_fields_that_are_shown() -> None:
    environment = OpenEnvEnvironment("openenv://host")
    assert environment._show({"text": "Hello", "metadata": {"a": 1}, "image": None}) == "Hello"
    assert environment._show({"board": [[0, 1]], "turn": 2}) == "board: [[0, 1]]\nturn: 2"
    chosen = OpenEnvEnvironment("openenv://host", EnvironmentConfig(observation_field="turn", level=3))
    assert chosen._show({"board": [[0, 1]], "turn": 2}) == "2"
    assert chosen.reset_arguments == {"level": 3}
    with pytest.raises(EnvironmentFailure, match=r"no field 'turn', but board: set environment\.observation_field"):
        chosen._show({"board": 1})


CALL = {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {}, "metadata": {}}
TOOLS = {"tools": [{"name": "look", "description": " Look. ", "input_schema": {"type": "object"}}]}
MCP_TOOLS = {"tools": [{"name": "look", "description": None, "inputSchema": {"type": "object"}}]}
REFUSED = {"code": "VALIDATION_ERROR", "message": "Invalid message"}
FIRST = {"observation": {"metadata": {"task": "Look!"}}, "reward": None, "done": False, "metadata": {"task": "Look!"}}


@asynccontextmanager
async def session(
    fields: dict[str, Any], *answers: dict[str, Any], first: Sequence[dict[str, Any]] = (FIRST,)
) -> AsyncGenerator[tuple[Any, list[Any]]]:
    """An environment, and what it sends to a server that has these answers after those to `reset`, one a connection."""
    sent: list[Any] = []
    resets = list(first)

    async def schema(request: web.Request) -> web.Response:
        return web.json_response({"action": {"properties": fields, "required": ["tool_name"]}})

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        left = [resets.pop(0), *answers]
        async for message in socket:
            sent.append(message.json())
            if not left:
                break
            await socket.send_json({"type": "", "data": left.pop(0)})
        return socket

    app = web.Application()
    app.add_routes([web.get("/schema", schema), web.get("/ws", talk)])
    async with TestServer(app) as server:
        environment = OpenEnvEnvironment(f"openenv://127.0.0.1:{server.port}")
        try:
            yield environment, sent
        finally:
            await environment.close()


def seen(reward: float | None = None, done: bool = False, **fields: Any) -> dict[str, Any]:
    return {"observation": fields, "reward": reward, "done": done, "metadata": fields.get("metadata")}


async def test_tools_are_asked_for_and_called_as_the_server_wants() -> None:
    content = [{"type": "text", "text": "A room."}, {"type": "image", "data": "..."}]
    result = seen(0.5, True, result={"content": content, "is_error": False}, error=None, metadata={"success": True})
    async with session(CALL, seen(**TOOLS), result) as (environment, sent):
        assert await environment.reset(seed=3) == "Look!", "the metadata, if there is nothing else"
        [look] = environment.step_tools
        assert (look.name, look.description, look.parameters) == ("look", "Look.", {"type": "object"})
        assert environment.get_prompt_prefix() == ""
        told = await environment.step("I look around.")
        assert told == ("Call one of the tools: look.", 0.0, False, {"invalid_action": True})
        taken = await environment.step('{"name": "look", "arguments": {"at": 1}}')
    assert taken == ("A room.\n[image]", 0.5, True, {"success": True})
    call = {"type": "call_tool", "tool_name": "look", "arguments": {"at": 1}}
    assert [message.get("data") for message in sent] == [{"seed": 3}, {"type": "list_tools"}, call, None]


@pytest.mark.parametrize(
    ("fields", "answers"),
    [(CALL, [REFUSED, {"jsonrpc": "2.0", "result": MCP_TOOLS}]), ({"metadata": {}}, [{"result": MCP_TOOLS}])],
)
async def test_some_servers_list_their_tools_only_without_a_step(fields: dict[str, Any], answers: list[Any]) -> None:
    async with session(fields, *answers) as (environment, sent):
        await environment.reset()
        assert [tool.name for tool in environment.step_tools] == ["look"]
        assert sent[-1] == {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": 1}}


async def test_an_action_without_fields_needs_no_tools_and_a_call_does() -> None:
    unsupported = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "Environment does not support MCP"}}
    async with session({"metadata": {}}, unsupported) as (environment, _):
        await environment.reset()
        assert environment.step_tools == []
    async with session(CALL, seen(tools=[]), unsupported) as (environment, _):
        with pytest.raises(EnvironmentFailure, match="takes calls of tools, but lists none"):
            await environment.reset()


@pytest.mark.parametrize(
    ("observation", "shown", "is_mistake"),
    [
        ({"error": {"error_type": "execution_error", "message": "It is dark."}, "result": None}, "It is dark.", True),
        ({"result": {"content": [{"type": "text", "text": "No."}], "is_error": True}}, "No.", True),
        ({"error": "no such item", "tool_name": "look"}, "no such item", True),
        ({"result": 3, "tool_name": "look"}, "3", False),
        ({"tool_name": "look", "room": "hall", "exits": 2}, "room: hall\nexits: 2", False),
        ({"metadata": {"answer": "the truth"}}, "Done.", False),
    ],
)
async def test_what_the_model_is_shown_of_a_call(observation: dict[str, Any], shown: str, is_mistake: bool) -> None:
    async with session(CALL, seen(**TOOLS), seen(**observation)) as (environment, _):
        await environment.reset()
        text, reward, done, info = await environment.step('{"name": "look", "arguments": {}}')
    assert (text, reward, done, info.get("invalid_action", False)) == (shown, 0.0, False, is_mistake)


async def test_faults_of_a_server_with_tools_are_faults() -> None:
    unreachable = {"error": {"error_type": "transport_error", "message": "pipe closed"}}
    crashed = {"code": "EXECUTION_ERROR", "message": "the simulator is gone"}
    for answer, why in ((seen(**unreachable), "could not reach its own tools: pipe closed"), (crashed, "is gone")):
        async with session(CALL, seen(**TOOLS), answer) as (environment, _):
            await environment.reset()
            with pytest.raises(EnvironmentFailure, match=why):
                await environment.step('{"name": "look", "arguments": {}}')
    async with session(CALL, seen(**TOOLS)) as (environment, _):
        await environment.reset()
        with pytest.raises(EnvironmentFailure, match="was lost in step"):
            await environment.step('{"name": "look", "arguments": {}}')


async def test_a_server_without_room_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "_FIRST_RETRY_SECONDS", 0.01)
    full = {"code": "CAPACITY_REACHED", "message": "No room", "max_sessions": 2}
    async with session({"text": {"type": "string"}}, first=[full, full, seen(text="Hello")]) as (environment, sent):
        assert await environment.reset(seed=3) == "Hello"
    assert [message["type"] for message in sent] == ["reset"] * 3 + ["close"]


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ACTION = {"properties": {"text": {"type": "string"}}, "required": ["text"]}


async def play_against(schema: Handler, *answers: Any) -> Trajectory:
    """One episode of two turns, in this process, against a server that answers so."""
    left = list(answers)

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for _ in socket:
            if not left:
                break
            answer = left.pop(0)
            await socket.send_str(answer if isinstance(answer, str) else json.dumps({"type": "", "data": answer}))
        return socket

    app = web.Application()
    app.add_routes([web.get("/schema", schema), web.get("/ws", talk), web.get("/elsewhere", honest_schema)])
    async with TestServer(app) as server:
        spec = EnvironmentSpec.of(f"openenv://127.0.0.1:{server.port}", EnvironmentConfig(call_seconds=20))
        assert spec.isolated().mode == "thread"
        start, chat = EpisodeStart("e"), cast("Chat", ByteChat())
        engine = ScriptedEngine(["a", "b"], chat)
        settings: Any = {"limits": Limits(turns=2), "sampling": Sampling()}
        return await run_episode(start, environment=spec, engine=engine, chat=chat, **settings)


async def honest_schema(request: web.Request) -> web.Response:
    return web.json_response({"action": ACTION})


def bomb() -> bytes:
    """64 MiB of a schema in a few hundred kB."""
    packer = zlib.compressobj(1, wbits=31)
    body = [packer.compress(part) for part in (b'{"action": {"t": "', *(b"x" * 2**20 for _ in range(64)), b'"}}')]
    return b"".join(body) + packer.flush()


async def test_a_compressed_or_endless_schema_is_not_read() -> None:
    asked, body = list[str](), bomb()

    async def compressed(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" " * 2**16)
        return response

    tracemalloc.start()
    ended = await play_against(compressed)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (ended.outcome, asked) == (Outcome.ENVIRONMENT_FAILED, ["identity"])
    assert "its answer is compressed (gzip)" in ended.error
    assert most < 2**24
    assert "its schema has more than 1,048,576 bytes" in (await play_against(endless)).error


async def test_a_redirect_is_not_followed() -> None:
    followed: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        followed.append(request.path)
        return await honest_schema(request)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", elsewhere)])
    async with TestServer(app) as other:

        async def redirect(request: web.Request) -> web.Response:
            raise web.HTTPFound(str(other.make_url("/schema")))

        ended = await play_against(redirect)
        assert ended.outcome is Outcome.ENVIRONMENT_FAILED
        assert "redirects to http://127.0.0.1" in ended.error
    assert followed == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (seen(1.0, text="x") | {"done": "false"}, "returned done = 'false'; it must be True or False"),
        (seen(1.0, text="x") | {"reward": "5"}, "returned the reward '5'"),
        (seen(1.0, text="x") | {"reward": [1]}, r"returned the reward [1]"),
        (seen(1.0, text="x") | {"metadata": [1]}, "metadata is '[1]'; it must be an object"),
        (
            seen(1.0, text="x") | {"metadata": {"a": "x" * 2**21}},
            "bytes beside the observation of a step; the limit is",
        ),
        (seen(1.0, text="x" * 5_000_000), "a text of 5,000,000 characters; the limit is"),
        ({"observation": None, "reward": 0, "done": False}, "observation is 'None'; it must be an object"),
        ('{"data": ' + "[" * 100_000 + "]" * 100_000 + "}", "RecursionError"),
        ({"code": "X"}, "failed in step: X: None"),
    ],
    ids=[
        "done",
        "reward text",
        "reward list",
        "info list",
        "info size",
        "text size",
        "no observation",
        "deep",
        "error",
    ],
)
async def test_what_a_server_says_is_read_right_or_refused(answer: Any, told: str) -> None:
    ended = await play_against(honest_schema, seen(text="Hi"), answer)
    assert ended.outcome is Outcome.ENVIRONMENT_FAILED
    assert told in ended.error


async def test_an_honest_server_is_played() -> None:
    ended = await play_against(honest_schema, seen(text="Hi"), seen(1.0, True, text="Yes", metadata={"success": True}))
    assert (ended.outcome, ended.total_reward, ended.error) == (Outcome.COMPLETED, 1.0, "")


@pytest.mark.parametrize("schema", [{"required": 5}, {"required": [1]}, {"properties": 5}, {"properties": {"a": 1}}, 5])
async def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"action": schema})

    assert "does not answer as an OpenEnv server" in (await play_against(answer)).error
