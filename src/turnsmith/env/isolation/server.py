"""The environment server: a worker process for each connection, which hosts the one environment that is served.

A client can build and play that environment with settings of its own, nothing else: nothing that it sends is unpickled,
and no name that it sends is imported. With a token, no process is started for whoever does not know it.
"""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.handshake import ask_for_token, keep_alive
from turnsmith.env.isolation.launch import start_supervisor
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.isolation.wire import frame
from turnsmith.errors import ConfigError

_GREETING_SECONDS = 10.0
_MOST_GREETINGS = 64
"""Connections that may be shaking hands at the same time; further ones are closed at once."""


class EnvironmentServer:
    """Starts a worker for each client that knows the token, and tells those for whom there is none that it is busy.

    Args:
        listener: A listening socket.
        limits: How many workers there may be, and what each may use.
        environment: The environment to serve, as `module:Name`.
        token: What clients must know; empty, on a loopback address only: nothing.
        idle_seconds: How long a worker may wait for a message of its client before it ends.
        warn: Called with a sentence when a client is turned away.

    Raises:
        ConfigError: The address can be reached from other machines, and there is no token.
    """

    def __init__(
        self,
        listener: socket.socket,
        limits: Isolation,
        environment: str,
        *,
        token: bytes = b"",
        idle_seconds: float = 1800.0,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        host = str(listener.getsockname()[0])
        if not token and not ipaddress.ip_address(host).is_loopback:
            raise ConfigError(
                f"Other machines can reach {host}, so clients must know a token: pass --token-file FILE, which writes "
                "a new token if there is no such file; or listen on 127.0.0.1 and use a tunnel."
            )
        self._listener, self._limits, self._environment = listener, limits, environment
        self._token, self._idle_seconds, self._warn = token, idle_seconds, warn
        self._greetings = threading.BoundedSemaphore(_MOST_GREETINGS)
        self._starting = threading.Lock()
        self._supervisors: list[subprocess.Popen[bytes]] = []

    def serve_forever(self) -> None:
        """Take connections; never returns."""
        while True:
            connection, address = self._listener.accept()
            if self._greetings.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection, str(address[0])), daemon=True).start()
            else:
                connection.close()

    def _greet(self, connection: socket.socket, client: str) -> None:
        try:
            with connection, suppress(OSError):  # the client is gone, or took too long
                connection.settimeout(_GREETING_SECONDS)
                keep_alive(connection)
                if not ask_for_token(connection, self._token):
                    self._warn(f"Turned away {client}: it does not know the token, or is no client of this version.")
                    connection.sendall(frame(m.encode(m.ErrorReply(0, "The environment server has another token."))))
                elif not self._start_worker(connection):
                    self._warn(f"Turned away {client}: all {self._limits.workers} workers are in use.")
                    connection.sendall(frame(m.encode(m.Busy(0, self._limits.workers))))
        finally:
            self._greetings.release()

    def _start_worker(self, connection: socket.socket) -> bool:
        with self._starting:
            self._supervisors = [supervisor for supervisor in self._supervisors if supervisor.poll() is None]
            if len(self._supervisors) >= self._limits.workers:
                return False
            connection.settimeout(None)
            limits = self._limits
            self._supervisors.append(
                start_supervisor(connection, limits.memory, limits.processes, self._environment, self._idle_seconds)
            )
            return True
