"""Connections of strangers: how long each may last, and how many there may be.

A connection is a stranger's until one of its requests has the key, or the secret of an episode. Clients with the key
start as strangers too, so new connections are never refused; old ones are closed. Knows nothing of keys and requests.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from contextlib import suppress
from typing import Any

from aiohttp import web

from turnsmith.gateway.half_closed import HttpConnection

STRANGER_SECONDS = 10.0
"""How long a connection may last without the key, whether it is idle, its body is slow or its headers never end."""
MOST_STRANGERS = 256
"""With more strangers than this, or than half of the free file descriptors, the oldest connection is closed."""
_LEAST_STRANGERS = 64
_ACCEPTED_AT_ONCE = 16
"""How many connections are accepted before one can be closed; less than `_LEAST_STRANGERS`."""
_WAITING = 4096
"""How many connections the kernel queues; its own limit may be lower."""
_MOST_FILES = 65_536


class Strangers:
    """Accepts connections for a server, and closes those that stay strangers.

    Args:
        server: Answers their requests.
        logger: Where aiohttp logs.
    """

    def __init__(self, server: web.Server, logger: logging.Logger) -> None:
        self._server = server
        self._logger = logger
        self._loop = asyncio.get_running_loop()
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._timers: dict[Any, asyncio.TimerHandle] = {}
        """By connection, oldest first; clients may have closed some of them."""
        self._listening: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections."""
        self._listening = await self._loop.create_server(self._arrive, sock=listener, backlog=_ACCEPTED_AT_ONCE)
        listener.listen(_WAITING)  # asyncio has one number for both limits

    def close(self) -> None:
        """Accept no more connections. The server closes the open ones."""
        if self._listening is not None:
            self._listening.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def admit(self, connection: Any) -> None:
        """Lift the limits from a connection, because its request had the key."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _arrive(self) -> asyncio.Protocol:
        connection = HttpConnection(self._server, loop=self._loop, access_log=None, logger=self._logger)
        self._timers[connection] = self._loop.call_later(STRANGER_SECONDS, self._end, connection)
        left = self._files - len(self._server.connections)
        while len(self._timers) > max(_LEAST_STRANGERS, min(MOST_STRANGERS, left // 2)):
            self._end(next(iter(self._timers)))
        return connection

    def _end(self, connection: Any) -> None:
        self._timers.pop(connection).cancel()
        if connection.transport is not None:
            connection.transport.abort()


def allow_more_files() -> None:
    """Raise this process's limit on open files, so that connections do not exhaust it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # a system may have a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
