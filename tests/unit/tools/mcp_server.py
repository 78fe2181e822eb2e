"""A small MCP server for the tests: `python mcp_server.py` over stdio, `python mcp_server.py PORT` over HTTP."""

import os
import subprocess
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test", log_level="ERROR")
state = {"count": 0}


@server.tool()
def add(a: int, b: int = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def count() -> str:
    """How often this was called."""
    state["count"] += 1
    return str(state["count"])


@server.tool()
def refuse(reason: str) -> str:
    """Always an error."""
    raise ToolError(f"I refuse: {reason}")


@server.tool()
def long() -> str:
    """A long text."""
    return "word " * 200_000


@server.tool()
def sleep(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def leave() -> str:
    """Leave a process of another session behind."""
    return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)


@server.tool()
def die() -> str:
    """End the server without a word."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
