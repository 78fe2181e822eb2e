"""Workers for whoever connects: one process for each connection, which hosts the one environment that is served.

A client can build and play that environment with settings of its own, nothing else: nothing that it sends is unpickled,
and no name that it sends is imported. There are no accounts: whoever reaches the port can play.
"""

from __future__ import annotations

import hmac
import socket
import subprocess
import time

from turnsmith.env.isolation.launch import start_supervisor
from turnsmith.env.isolation.settings import Isolation

_TOKEN_SECONDS = 10.0
_PAUSE = 0.2


def serve_forever(listener: socket.socket, limits: Isolation, only: str = "", token: bytes = b"") -> None:
    """Start a worker for each connection, at most `limits.workers` at a time; others wait. Never returns.

    Args:
        listener: A socket that listens.
        limits: How many workers there may be, and what each may take.
        only: The environment to serve, as `module:Name`. Empty: any, which is only for those who know the token.
        token: What a client has to say first.
    """
    if not only and not token:
        raise ValueError("a server of any code at all needs a token")
    listener.settimeout(_PAUSE)
    keepers: list[subprocess.Popen[bytes]] = []
    while True:
        keepers = [keeper for keeper in keepers if keeper.poll() is None]
        if len(keepers) >= limits.workers:
            time.sleep(_PAUSE)
            continue
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            if _is_known(connection, token):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keepers.append(start_supervisor(connection, limits.memory, limits.processes, only))


def _is_known(connection: socket.socket, token: bytes) -> bool:
    """Whether the client says the token, within a moment."""
    connection.settimeout(_TOKEN_SECONDS)
    said = b""
    try:
        while len(said) < len(token):
            more = connection.recv(len(token) - len(said))
            if not more:
                return False
            said += more
    except OSError:
        return False
    connection.settimeout(None)
    return hmac.compare_digest(said, token)
