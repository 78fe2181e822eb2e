"""`turnsmith serve-env`: environments of this machine for training and evaluation on others."""

from __future__ import annotations

import argparse
from typing import Any

_DESCRIPTION = """\
Serve an environment to training and evaluation on other machines.

Each connection gets a worker process of its own. Others play in it with
environment.isolation=tcp://HOST:PORT. There are no accounts: whoever reaches
the port can play, so keep it to a network that you trust."""

_EXAMPLES = """\
examples:
  turnsmith serve-env my_game.py:MyGame
  turnsmith serve-env games.chess:Chess --host 0.0.0.0 --port 9000"""


def add_serve_env_command(commands: Any) -> None:
    """Add `turnsmith serve-env` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve-env",
        help="serve an environment to other machines",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("environment", metavar="ENVIRONMENT", help="module:Name or path/to/file.py:Name")
    add("--host", metavar="HOST", default="127.0.0.1", help="the address to listen on (127.0.0.1: this machine only)")
    add("--port", metavar="PORT", type=int, default=9000, help="the port (9000); 0: any that is free")
    add("--workers", metavar="N", type=int, default=0, help="most worker processes (one for each core, at most 8)")
    add("--memory-gib", metavar="G", type=float, default=0.0, help="memory of each (its share of half the machine)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    import socket

    from turnsmith.config import EnvironmentConfig
    from turnsmith.env.isolation.server import serve_forever
    from turnsmith.env.isolation.settings import Isolation
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.errors import ConfigError

    spec = EnvironmentSpec.of(args.environment)
    settings = EnvironmentConfig(isolation_workers=args.workers, isolation_memory_gib=args.memory_gib)
    try:
        listener = socket.create_server((args.host, args.port))
    except OSError as error:
        raise ConfigError(f"Cannot listen on {args.host}:{args.port}: {error.strerror or error}.") from error
    with listener:
        port = listener.getsockname()[1]
        print(f"Serving {spec.name}; play in it with environment.isolation=tcp://{args.host}:{port}", flush=True)
        serve_forever(listener, Isolation.of(settings), str(spec.target))
    return 0
