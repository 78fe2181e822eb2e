"""An environment behind OpenEnv's protocol: how `openenv://` plays it, who may, and what each mistake is told."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.unit.gateway.till import Till

from turnsmith import EnvironmentConfig, EnvironmentSpec
from turnsmith.env.adapters import openenv
from turnsmith.env.isolation.pool import close_workers, isolation_status
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.mix import EnvironmentMix
from turnsmith.errors import ConfigError, EnvironmentFailure, EnvironmentTimeout, WorkerLost
from turnsmith.gateway import environment_server
from turnsmith.gateway.environment_server import EnvironmentServer
from turnsmith.tools.definition import ToolCall, ToolResult
from turnsmith.tools.registry import ToolRegistry

TOKEN = "0123456789abcdef"


@asynccontextmanager
async def served(*, in_worker: bool = False, call_seconds: float = 20.0, **options: Any) -> AsyncGenerator[str]:
    """The address of a server of `Till`, which plays it in this process, unless a test needs the worker's."""
    spec = EnvironmentSpec.of(Till, EnvironmentConfig(isolation_workers=1, max_steps=3, call_seconds=call_seconds))
    server, listener = EnvironmentServer(spec, **options), socket.create_server(("127.0.0.1", 0))
    with pytest.MonkeyPatch.context() as patch:
        if not in_worker:
            patch.setattr(environment_server, "RemoteHost", EnvironmentHost)
        await server.start(listener)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await server.stop()
            await close_workers()


@asynccontextmanager
async def played(address: str, seed: int = 3, **settings: Any) -> AsyncGenerator[tuple[EnvironmentHost, str]]:
    """An episode of a client of ours, and its first observation."""
    host = EnvironmentHost(EnvironmentSpec.of(f"openenv://{address}", EnvironmentConfig(**settings)))
    try:
        yield host, await host.reset(seed, {"level": 2})
    finally:
        await host.close()


async def test_an_episode_is_played_as_it_is_without_a_server() -> None:
    async def sell(pieces: object) -> ToolResult:
        return await ToolRegistry(host.tools()).call(ToolCall("sell", {"pieces": pieces}))

    async with served() as address, played(address) as (host, first):
        assert first == "3 {'level': 2}"
        assert host.prompt_prefix() == "You keep a shop."
        assert host.examples == (("user", "A pear?"), ("assistant", "Here."))
        [tool] = host.tools()
        assert (tool.is_step, tool.definition.description) == (False, "Sell something.")
        assert (await sell(2)).text == "2 sold"
        assert (await sell(-1)).text == "That is no sale."
        assert (await sell("two")).text == "The argument pieces must be of type integer, not 'two'."
        assert "sell raised ValueError: nothing (in sell, till.py line" in (await sell(0)).failure
        results = [await host.step("a"), await host.step("b"), await host.step("c")]
        assert [(one.observation, one.reward) for one in results] == [("2 a", 0.5), ("2 b", 0.5), ("2 c", 0.5)]
        assert [one.truncated for one in results] == [False, False, True], "calls of tools are no steps"
        assert (results[2].terminated, results[2].info["success"], set(results[2].info)) == (
            False,
            True,
            {"success", "process"},
        )
        async with played(address) as (host, _):
            assert (await host.step("shut")).terminated
        async with played(address) as (host, _):
            assert not await host.is_over()
            await sell(12)
            assert await host.is_over(), "a call ended the episode"


@pytest.mark.parametrize(
    ("action", "fault", "told"),
    [
        ("raise", EnvironmentFailure, r"Till\.step raised KeyError: 'sword' \(in step, till\.py line"),
        ("exit", WorkerLost, "exited with status 3"),
        ("hang", EnvironmentTimeout, r"Till\.step took longer than 1 second"),
    ],
)
async def test_a_fault_behind_the_server_is_the_same_fault(
    action: str, fault: type[EnvironmentFailure], told: str
) -> None:
    seconds = 1.0 if action == "hang" else 20.0
    async with served(in_worker=action == "exit", call_seconds=seconds) as address:
        async with played(address) as (host, _):
            with pytest.raises(EnvironmentFailure, match=told) as raised:
                await host.step(action)
        assert type(raised.value) is fault
        async with played(address) as (host, _):
            assert (await host.step("a")).observation == "0 a", "the next episode is played"


async def test_each_session_has_its_own_environment_and_leaves_none() -> None:
    async with served(in_worker=True) as address:
        async with played(address, 1) as (one, first), played(address, 2) as (two, second):
            assert (first, second) == ("1 {'level': 2}", "2 {'level': 2}")
            await ToolRegistry(one.tools()).call(ToolCall("sell", {"pieces": 1}))
            assert ((await one.step("a")).observation, (await two.step("a")).observation) == ("1 a", "0 a")
            assert isolation_status().environments == 2
        async with asyncio.timeout(10):
            while isolation_status().environments:
                await asyncio.sleep(0.01)


async def test_sessions_beyond_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openenv, "_FIRST_RETRY_SECONDS", 0.01)
    async with served(sessions=1) as address:
        async with played(address, 1) as (one, _):
            waiting = asyncio.ensure_future(first_of(address))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await one.step("a")
        assert await waiting == "2 {'level': 2}"


async def first_of(address: str) -> str:
    async with played(address, 2) as (_, first):
        return first


async def test_a_silent_client_loses_its_session_and_one_that_waits_for_a_call_does_not() -> None:
    async with (
        served(idle_seconds=0.1, call_seconds=1.0) as address,
        aiohttp.ClientSession() as http,
        http.ws_connect(f"http://{address}/ws") as socket_,
    ):
        await socket_.send_json({"type": "reset"})
        assert (await socket_.receive_json())["type"] == "observation"
        await socket_.send_json({"type": "step", "data": {"text": "hang"}})
        assert "took longer than 1 second" in (await socket_.receive_json())["data"]["message"]
        assert (await socket_.receive(10)).type is aiohttp.WSMsgType.CLOSE


async def test_the_kernel_finds_out_that_the_machine_of_a_client_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def show_options(server: EnvironmentServer, http: web.Request) -> web.Response:
        connection = http.transport and http.transport.get_extra_info("socket")
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)]
        return web.json_response([connection.getsockopt(*option) for option in options] if connection else [])

    monkeypatch.setattr(EnvironmentServer, "_health", show_options)
    async with (
        served() as address,
        aiohttp.ClientSession() as client,
        client.get(f"http://{address}/health") as response,
    ):
        assert await response.json() == [1, 60]


@asynccontextmanager
async def session(address: str) -> AsyncGenerator[Any]:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"http://{address}/ws") as connection:

        async def ask(message: object) -> dict[str, Any]:
            await connection.send_str(message if isinstance(message, str) else json.dumps(message))
            return await connection.receive_json()

        yield ask


async def test_what_other_clients_of_the_protocol_ask() -> None:
    async with served() as address, session(address) as ask:
        first = (await ask({"type": "reset", "data": {"seed": 1, "episode_id": "e"}}))["data"]
        assert (first["observation"], first["done"]) == ({"text": "1 None"}, False)
        listed = (await ask({"type": "step", "data": {"type": "list_tools"}}))["data"]["observation"]["tools"]
        assert [(tool["name"], tool["input_schema"]["required"]) for tool in listed] == [("sell", ["pieces"])]
        rpc = {"jsonrpc": "2.0", "method": "tools/list", "id": 7}
        answer = (await ask({"type": "mcp", "data": rpc}))["data"]
        assert (answer["id"], answer["result"]["tools"][0]["inputSchema"]["required"]) == (7, ["pieces"])
        call = {"type": "call_tool", "tool_name": "sell", "arguments": {"pieces": 2}}
        assert (await ask({"type": "step", "data": call}))["data"]["observation"]["result"] == "2 sold"
        assert (await ask({"type": "step", "data": {"text": "a"}}))["data"]["reward"] == 0.5
        assert (await ask({"type": "state"}))["data"] == {"episode_id": "e", "step_count": 1}
        again = (await ask({"type": "reset"}))["data"]["observation"]["text"]
        assert again != "1 None", "a fresh environment, with a seed of its own"


@pytest.mark.parametrize(
    ("message", "code", "told"),
    [
        ("[" * 10_000, "INVALID_JSON", "This is not a message"),
        ('"hello"', "INVALID_JSON", "Expected `object`"),
        ({"type": "dance"}, "UNKNOWN_TYPE", "dance"),
        ({"type": "step", "data": {"text": "a"}}, "EXECUTION_ERROR", "No episode has begun: send a reset first."),
        ({"type": "reset", "data": {"seed": -1}}, "VALIDATION_ERROR", "Invalid message"),
        ({"type": "mcp", "data": {"method": "tools/call"}}, None, None),
    ],
)
async def test_a_clients_mistakes_are_told_and_start_nothing(message: object, code: str, told: str) -> None:
    async with served(in_worker=True) as address, session(address) as ask:
        answer = (await ask(message))["data"]
        assert answer.get("code") == code
        assert (told or "") in str(answer)
        assert isolation_status().workers == 0


async def test_an_action_that_is_none_is_told_to_the_client() -> None:
    async with served() as address, session(address) as ask:
        await ask({"type": "reset"})
        wrong = [{}, {"text": 3}, {"type": "call_tool"}, {"type": "call_tool", "tool_name": "sell", "arguments": 3}]
        answers = [(await ask({"type": "step", "data": data}))["data"] for data in wrong]
        assert [answer["code"] for answer in answers] == ["VALIDATION_ERROR"] * 4
        assert answers[0]["errors"][0]["msg"] == "text: Field required, a string"


async def test_only_who_knows_the_token_is_answered(tmp_path: Path) -> None:
    (tmp_path / "right").write_text(f"{TOKEN}\n")
    (tmp_path / "wrong").write_text(TOKEN[::-1])
    async with served(in_worker=True, token=TOKEN.encode()) as address:
        for settings in ({}, {"token_file": str(tmp_path / "wrong")}):
            with pytest.raises(EnvironmentFailure, match="401"):
                async with played(address, **settings):
                    pass
        async with aiohttp.ClientSession() as http:
            for path in ("health", "schema", "ws"):
                async with http.get(f"http://{address}/{path}") as answer:
                    assert answer.status == 401
        for nonsense in (b"\xff" * 99, b"GET /ws HTTP/1.1\r\n\r\n", b"\x03\x00\x00\x00"):
            with socket.create_connection(address.split(":")) as stranger:  # type: ignore[arg-type]
                stranger.sendall(nonsense)
        assert isolation_status().workers == 0, "no process was started for any of them"
        async with played(address, token_file=str(tmp_path / "right")) as (host, _):
            assert (await host.step("a")).observation == "0 a"


async def test_a_web_page_is_not_answered() -> None:
    async with served() as address, aiohttp.ClientSession(headers={"Origin": "https://example.org"}) as http:
        for path in ("schema", "ws"):
            async with http.get(f"http://{address}/{path}") as answer:
                assert answer.status == 403


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(ConfigError, match="mix of environments: serve each of them"):
        EnvironmentServer(EnvironmentMix({"a": Till, "b": Till}))
    with pytest.raises(ConfigError, match="is an agent, which asks the model itself"):
        EnvironmentServer(EnvironmentSpec.of(agent))


async def agent(task: Any, model: Any) -> float:
    return 1.0


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    for text, told in (("secret\n", "has 6 characters; it needs at least 16"), (f"{TOKEN}\n{TOKEN}", "in one line")):
        (tmp_path / "token").write_text(text)
        with pytest.raises(ConfigError, match=told):
            openenv.read_token(str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="cannot be used: No such file"):
        EnvironmentSpec.of("openenv://host", EnvironmentConfig(token_file=str(tmp_path / "none")))
