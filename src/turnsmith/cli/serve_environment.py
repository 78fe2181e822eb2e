"""`turnsmith serve --environment`: serve an environment to training and evaluation on other machines."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnsmith.errors import ConfigError
from turnsmith.text import print_line

if TYPE_CHECKING:
    from turnsmith.gateway.environment_server import EnvironmentServer

ENVIRONMENT_PORT = 9000
_SESSIONS = 128


def add_environment_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that go with `--environment` only."""
    group = parser.add_argument_group("to serve an environment to other machines instead of a model")
    add = group.add_argument
    add("--environment", metavar="ENVIRONMENT", dest="served", help="module:Name or path/to/file.py:Name")
    sessions = f"episodes at the same time, at most; others wait (default: {_SESSIONS})"
    add("--sessions", metavar="N", type=int, default=_SESSIONS, help=sessions)
    token = "token that clients must know; written if there is no such file"
    add("--token-file", metavar="FILE", default="", help=token)


def serve_environment(args: argparse.Namespace, listener: socket.socket) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from turnsmith.config import ConfigStore
    from turnsmith.config_sources import apply_overrides, load
    from turnsmith.env.adapters.openenv import read_token
    from turnsmith.env.isolation.settings import Isolation
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.importing import add_to_path

    overrides = [word for word in (args.model, *args.overrides) if word is not None]
    if unused := next((word for word in overrides if not word.startswith("environment.")), ""):
        raise ConfigError(f"{unused} has no use here: an environment is served with settings environment.NAME=VALUE.")
    if args.sessions < 1:
        raise ConfigError(f"--sessions is {args.sessions}; it must be at least 1.")
    add_to_path(Path.cwd())
    config = apply_overrides(load(args.config) if args.config else ConfigStore(), overrides)
    Isolation.of(config.environment, "process")  # said before what a machine without them would have to install
    from turnsmith.gateway.environment_server import EnvironmentServer
    from turnsmith.gateway.strangers import allow_more_files

    spec = EnvironmentSpec.of(args.served, config.environment)
    token, (host, port) = read_token(args.token_file, create=True), listener.getsockname()[:2]
    if not token and not ipaddress.ip_address(host).is_loopback:
        raise ConfigError(
            f"Other machines can reach {host}, so clients must know a token: pass --token-file FILE, which writes "
            "a new token if there is no such file; or listen on 127.0.0.1 and use a tunnel."
        )
    allow_more_files()
    server = EnvironmentServer(spec, token=token.encode(), sessions=args.sessions, idle_seconds=args.idle_seconds)
    where = f"openenv://[{host}]:{port}" if ":" in host else f"openenv://{host}:{port}"
    asyncio.run(_serve(server, listener, f"Serving {spec.name}. Play it as {where}"))
    print_line("Stopped.", sys.stdout)
    return 0


async def _serve(server: EnvironmentServer, listener: socket.socket, hello: str) -> None:
    stop = asyncio.Event()
    for kind in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(kind, stop.set)
    await server.start(listener)
    print_line(hello, sys.stdout)
    await stop.wait()
    await server.stop()
