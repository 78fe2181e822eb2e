"""Tools of a real MCP server process, over both transports."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnsmith.errors import ConfigError
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.mcp import McpServer, add_mcp_server
from turnsmith.tools.registry import ToolRegistry

pytest.importorskip("mcp")
SERVER = str(Path(__file__).with_name("mcp_server.py"))
COMMAND = [sys.executable, SERVER]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server that runs while this file's tests do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def connect(registry: ToolRegistry, transport: str, url: str, **options: Any) -> McpServer:
    if transport == "stdio":
        return add_mcp_server(registry, COMMAND, **options)
    return add_mcp_server(registry, url=url, **options)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_servers_tools_are_in_the_registry(transport: str, url: str) -> None:
    registry = ToolRegistry()
    async with connect(registry, transport, url, max_output_tokens=50) as server:
        assert registry.names == ["add", "count", "refuse", "long", "sleep", "leave", "die"]
        assert len(server.tools) == 7
        definition = registry.definitions()[0]
        assert definition.description == "Add two numbers."
        assert definition.parameters["properties"]["a"]["type"] == "integer"
        assert definition.parameters["required"] == ["a"]

        results = await asyncio.gather(*(registry.call(ToolCall("add", {"a": n, "b": n})) for n in range(10)))
        assert [result.text for result in results] == [str(2 * n) for n in range(10)]

        refused = await registry.call(ToolCall("refuse", {"reason": "closed"}))
        assert (refused.ok, refused.failure) == (False, "")
        assert "I refuse: closed" in refused.text

        wrong = await registry.call(ToolCall("add", {"a": "one"}))
        assert wrong.text == "The argument a must be of type integer, not 'one'."

        long = await registry.call(ToolCall("long", {}))
        assert long.cut
        assert len(long.text) <= 200

        registry.get("sleep").time_limit = 0.1  # type: ignore[union-attr]
        late = await registry.call(ToolCall("sleep", {"seconds": 0.5}))
        assert late.failure == "sleep took longer than 0.1 seconds."
        assert (await registry.call(ToolCall("add", {"a": 1}))).text == "2"
    assert registry.names == []


async def test_a_lost_connection_is_one_failure_and_the_next_call_starts_the_server_again() -> None:
    registry = ToolRegistry()
    server = await add_mcp_server(registry, COMMAND, prefix="shop_")
    try:
        assert (await registry.call(ToolCall("shop_count", {}))).text == "1"
        lost = await registry.call(ToolCall("shop_die", {}))
        assert not lost.ok
        assert "Connection closed" in lost.failure
        assert "Connection" not in lost.text
        assert (await registry.call(ToolCall("shop_count", {}))).text == "1"  # a new process
    finally:
        await server.close()
    await server.close()


@pytest.mark.skipif("sys.platform != 'linux'", reason="elsewhere there is no subreaper")
async def test_a_server_ends_with_all_that_it_started() -> None:
    registry = ToolRegistry()
    async with add_mcp_server(registry, COMMAND):
        left = (await registry.call(ToolCall("leave", {}))).text
        assert Path(f"/proc/{left}").exists()
    assert not Path(f"/proc/{left}").exists()


def test_plain_code_can_call_them_too(url: str) -> None:
    registry = ToolRegistry()

    async def connected() -> McpServer:
        return await add_mcp_server(registry, url=url)

    server = asyncio.run(connected())  # that loop is closed by now; the connection is not in it
    assert registry.execute_tool("add", a=2, b=3) == (True, "5")
    asyncio.run(server.close())
    assert registry.names == []


async def test_a_server_that_cannot_be_reached_is_one_sentence() -> None:
    registry = ToolRegistry()
    with pytest.raises(ConfigError, match=r"no-such-program could not be started: .*No such file or directory"):
        await add_mcp_server(registry, ["no-such-program"])
    with pytest.raises(ConfigError, match="its last output: out of paper"):
        await add_mcp_server(registry, [sys.executable, "-c", "import sys; sys.exit('out of paper')"])
    with pytest.raises(ConfigError, match="could not be started: ConnectError"):
        await add_mcp_server(registry, url="http://127.0.0.1:9/mcp")
    for wrong in ({}, {"command": []}, {"command": ["x"], "url": "http://x"}):
        with pytest.raises(ConfigError, match="either a command or a url"):
            add_mcp_server(registry, **wrong)  # type: ignore[arg-type]


async def test_names_that_clash_leave_nothing_behind(url: str) -> None:
    def count() -> str:
        """Another tool of that name."""
        return "mine"

    registry = ToolRegistry([count])
    with pytest.raises(ConfigError, match="already a tool named 'count'"):
        await add_mcp_server(registry, url=url)
    assert registry.names == ["count"]
