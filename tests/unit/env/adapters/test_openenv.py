"""What an OpenEnv server's address, actions and observations become; `tests/e2e/test_openenv.py` has a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnsmith import EnvironmentConfig, EnvironmentSpec
from turnsmith.env.adapters import openenv
from turnsmith.env.adapters.openenv import OpenEnvEnvironment
from turnsmith.errors import ConfigError, EnvironmentFailure


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
