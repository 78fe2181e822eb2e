"""`turnsmith serve-env`: serve an environment to training and evaluation on other machines."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from turnsmith.terminal import print_line

_DESCRIPTION = """\
Serve an environment to training and evaluation on other machines.

Each connection gets its own worker process. The other machines set
environment.isolation=tcp://HOST:PORT. There is no authentication: whoever can
reach the port can use the environment, so expose it to a trusted network only."""

_EXAMPLES = """\
examples:
  turnsmith serve-env my_game.py:MyGame
  turnsmith serve-env games.chess:Chess --host 0.0.0.0 --port 9000"""


def add_serve_env_command(commands: Any) -> None:
    """Add `turnsmith serve-env` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve-env", help="serve an environment to other machines", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add("environment", metavar="ENVIRONMENT", help="module:Name or path/to/file.py:Name")
    add("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", metavar="PORT", type=int, default=9000, help="port to listen on; 0 picks a free one (default: 9000)")
    add(
        "--workers", metavar="N", type=int, default=0, help="worker processes, at most (default: one per core, up to 8)"
    )
    add(
        "--memory-gib",
        metavar="G",
        type=float,
        default=0.0,
        help="memory limit of a worker (default: half the RAM, shared)",
    )
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
        print_line(f"Serving {spec.name}. Use it with environment.isolation=tcp://{args.host}:{port}", sys.stdout)
        serve_forever(listener, Isolation.of(settings), str(spec.target))
    return 0
