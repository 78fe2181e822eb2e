"""`turnsmith serve-env`: serve an environment to training and evaluation on other machines."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from turnsmith.terminal import print_line

_DESCRIPTION = """\
Serve an environment to training and evaluation on other machines.

Each connection gets its own worker process. The other machines set
environment.isolation=tcp://HOST:PORT, and environment.isolation_token_file to a
copy of the token file. On any address but loopback a token is required. The
connection is not encrypted: where others can listen, use a tunnel such as ssh."""

_EXAMPLES = """\
examples:
  turnsmith serve-env my_game.py:MyGame
  turnsmith serve-env games.chess:Chess --host 0.0.0.0 --token-file env.token"""


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
    add(
        "--token-file",
        metavar="FILE",
        default="",
        help="token that clients must know; written if there is no such file",
    )
    add(
        "--idle-seconds",
        metavar="S",
        type=float,
        default=1800.0,
        help="end a worker whose client has been silent for so long; 0: never (default: 1800)",
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    import socket

    from turnsmith.config import EnvironmentConfig
    from turnsmith.env.isolation.handshake import read_token
    from turnsmith.env.isolation.server import EnvironmentServer
    from turnsmith.env.isolation.settings import Isolation
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.errors import ConfigError

    spec = EnvironmentSpec.of(args.environment)
    if spec.member_for("", 0) is not None:
        raise ConfigError(f"{args.environment} is a mix of environments: serve each of them, in a server of its own.")
    settings = EnvironmentConfig(isolation_workers=args.workers, isolation_memory_gib=args.memory_gib)
    token = read_token(args.token_file, create=True)
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        listener = socket.create_server((args.host, args.port), family=family)
    except OSError as error:
        raise ConfigError(f"Cannot listen on {args.host}:{args.port}: {error.strerror or error}.") from error
    with listener:
        server = EnvironmentServer(
            listener,
            Isolation.of(settings, "process"),
            str(spec.target),
            token=token,
            idle_seconds=args.idle_seconds,
            warn=lambda sentence: print_line(sentence, sys.stderr),
        )
        where = f"[{args.host}]" if family is socket.AF_INET6 else args.host
        port = listener.getsockname()[1]
        print_line(f"Serving {spec.name}. Use it with environment.isolation=tcp://{where}:{port}", sys.stdout)
        server.serve_forever()
    return 0
