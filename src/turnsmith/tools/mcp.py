"""Add the tools of an MCP server to a registry, over stdio or streamable HTTP, with the official `mcp` package.

The connection runs in the shared event loop of the process (`concurrency/loop_thread.py`), so that the registry can be
used from any event loop and from synchronous code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnsmith.concurrency.loop_thread import shared_loop
from turnsmith.concurrency.supervisor import supervised
from turnsmith.errors import ConfigError, MissingDependency, ToolError
from turnsmith.importing import install_line
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.tool import Tool

if TYPE_CHECKING:
    from mcp import Client

START_LIMIT = 30.0
"""Timeout in seconds for a server to start and list its tools."""
CLOSE_LIMIT = 10.0
"""Timeout in seconds for a server to shut down."""


def add_mcp_server(
    registry: ToolRegistry,
    command: Sequence[str] | None = None,
    *,
    url: str | None = None,
    prefix: str = "",
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    time_limit: float = 30.0,
    max_output_tokens: int = 1024,
) -> McpServer:
    """Connect to an MCP server and add its tools to the registry.

    Write `async with add_mcp_server(...)`, or `server = await add_mcp_server(...)` and `await server.close()` later.

    Args:
        registry: Where the tools are registered. They are removed again when the server is closed.
        command: A program to start, with its arguments, which speaks MCP over stdin and stdout.
        url: Or the URL of a running server, which speaks streamable HTTP.
        prefix: Prepended to the name of every tool, in case the names of two servers clash.
        env: Environment variables for the program. Of ours it inherits only `PATH`, `HOME` and the like.
        headers: HTTP headers for the server, for example for authorization.
        time_limit: Timeout of one call in seconds.
        max_output_tokens: Longer results are shortened to this many tokens before the model sees them.

    Raises:
        ConfigError: The server cannot be started or reached, or one of its tools has a name that is taken.
        MissingDependency: The package `mcp` is not installed.

    Example:
        >>> async def names():
        ...     registry = ToolRegistry()
        ...     async with add_mcp_server(registry, ["my-server", "--stdio"]):
        ...         return registry.names
        >>> asyncio.run(names())
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The MCP server my-server --stdio could not be started: ...
    """
    if (command is None) == (url is None) or not (command or url):
        raise ConfigError("Give add_mcp_server either a command or a url.")
    try:
        import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingDependency(f"MCP servers need the package mcp: {install_line('mcp')}.") from error
    connection = _Connection(list(command or ()), url or "", dict(env or {}), dict(headers or {}))
    return McpServer(registry, connection, prefix, time_limit, max_output_tokens)


class McpServer:
    """A connected MCP server. Created by `add_mcp_server`.

    If the connection is lost the call at hand fails; the next call reconnects, or restarts the program.
    """

    def __init__(
        self, registry: ToolRegistry, connection: _Connection, prefix: str, time_limit: float, max_output_tokens: int
    ) -> None:
        self._registry = registry
        self._connection = connection
        self._prefix = prefix
        self._limits = (time_limit, max_output_tokens)
        self._is_open = False
        self.tools: list[McpTool] = []
        """The tools that the server listed when it was connected."""

    def __await__(self) -> Generator[Any, None, McpServer]:
        return self._open().__await__()

    async def __aenter__(self) -> McpServer:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> McpServer:
        if self._is_open:
            return self
        self._is_open = True
        try:
            for listed in await shared_loop().run_async(self._connection.connect()):
                definition = ToolDefinition(
                    self._prefix + listed.name, (listed.description or "").strip(), dict(listed.input_schema)
                )
                tool = McpTool(self._connection, listed.name, definition, *self._limits)
                self._registry.register(tool)
                self.tools.append(tool)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Remove the tools from the registry and close the connection; ends the program if there is one."""
        self._is_open = False
        for tool in self.tools:
            self._registry.remove(tool.definition.name)
        self.tools.clear()
        await shared_loop().run_async(self._connection.close())


class McpTool(Tool):
    """One tool of an MCP server."""

    def __init__(
        self, connection: _Connection, name: str, definition: ToolDefinition, time_limit: float, max_output_tokens: int
    ) -> None:
        super().__init__(definition)
        self._connection = connection
        self._name = name
        self.time_limit = time_limit
        self.max_output_tokens = max_output_tokens

    async def execute(self, **arguments: Any) -> str:
        """Call the tool on the server. An error that the server reports is shown to the model."""
        return await shared_loop().run_async(self._connection.call(self._name, arguments))


class _Connection:
    """The connection to one server. All methods except the constructor run in the shared event loop."""

    def __init__(self, command: list[str], url: str, env: dict[str, str], headers: dict[str, str]) -> None:
        self.name = " ".join(command) or url
        self._command = command
        self._url = url
        self._env = env
        self._headers = headers
        self._client: Client | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._connecting = asyncio.Lock()

    async def connect(self) -> list[Any]:
        """Connect and list the tools."""
        ready: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        # In its own task, because the client must be closed by the task that opened it.
        self._serving = asyncio.create_task(self._serve(ready, self._stop))
        try:
            async with asyncio.timeout(START_LIMIT):
                return await ready
        except TimeoutError:
            raise ConfigError(
                f"The MCP server {self.name} could not be started: no answer within {START_LIMIT:g} seconds."
            ) from None
        finally:
            if self._client is None:  # it is still waiting for an answer and would not notice `stop`
                self._serving.cancel()

    async def _serve(self, ready: asyncio.Future[list[Any]], stop: asyncio.Event) -> None:
        from mcp import Client

        with tempfile.TemporaryFile("a+") as stderr:
            try:
                async with self._transport(stderr) as transport, Client(transport) as client:
                    tools = await _list_tools(client)
                    self._client = client
                    if not ready.done():
                        ready.set_result(tools)
                    await stop.wait()
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(
                        ConfigError(f"The MCP server {self.name} could not be started: {_reason(error, stderr)}")
                    )
            finally:
                self._client = None

    @contextlib.asynccontextmanager
    async def _transport(self, stderr: Any) -> AsyncGenerator[Any, None]:
        if self._command:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program, *arguments = supervised(self._command)  # it ends with all that it has started
            # Its stderr goes to a file: on the terminal it would disturb the progress display.
            yield stdio_client(StdioServerParameters(command=program, args=arguments, env=self._env), errlog=stderr)
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        # The defaults of `mcp`: a response may be streamed long after the request.
        timeout = httpx2.Timeout(30.0, read=300.0)
        async with httpx2.AsyncClient(headers=self._headers, timeout=timeout) as http:
            yield streamable_http_client(self._url, http_client=http)

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS

        client = self._client or await self._reconnect()
        try:
            result = await client.call_tool(name, arguments)
        except Exception as error:
            code = error.code if isinstance(error, MCPError) else CONNECTION_CLOSED
            if code == INVALID_PARAMS:
                raise ToolError(str(error)) from error
            # A ValueError is a response that breaks the protocol: the connection itself is still good.
            if code == CONNECTION_CLOSED and not isinstance(error, ValueError) and self._client is client:
                self._client = None
            raise
        text = "\n".join(part_text(part.model_dump()) for part in result.content)
        if result.is_error:
            raise ToolError(text or "The tool reported an error.")
        return text or "Done."

    async def _reconnect(self) -> Client:
        async with self._connecting:
            if self._client is None:
                await self.close()
                await self.connect()
        if self._client is None:
            raise ConnectionError(f"the MCP server {self.name} is not connected")
        return self._client

    async def close(self) -> None:
        """Close the connection. `mcp` gives the program two seconds to end, with all processes that it started."""
        self._stop.set()
        if self._serving is not None:
            await asyncio.wait((self._serving,), timeout=CLOSE_LIMIT)
            self._serving.cancel()


async def _list_tools(client: Client) -> list[Any]:
    tools: list[Any] = []
    cursor: str | None = None
    for _ in range(100):  # pages; a server whose list never ends must not block us
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def part_text(part: Mapping[str, Any]) -> str:
    """A part of a tool's result, as the protocol writes it, for a language model.

    Example:
        >>> part_text({"type": "text", "text": "It opens."}), part_text({"type": "image", "data": "..."})
        ('It opens.', '[image]')
    """
    if part["type"] == "text":
        return part["text"]
    if part["type"] == "resource" and "text" in part["resource"]:
        return part["resource"]["text"]
    if part["type"] == "resource_link":
        return str(part["uri"])
    return f"[{part['type']}]"  # an image or audio, which a language model cannot read


def _reason(error: BaseException, stderr: Any) -> str:
    """The innermost error of an exception group, and the last line that the program wrote to stderr."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    size = os.fstat(stderr.fileno()).st_size
    stderr.seek(max(0, size - 2000))
    lines = stderr.read().strip().splitlines()
    return f"{type(error).__name__}: {str(error)[:300]}" + (f"; its last output: {lines[-1][:300]}" if lines else "")
