"""Connections that a client has half-closed: it may still wait for its answer, or be gone.

The two look the same until the answer is sent: a waiting client's system acknowledges it, and the system of a client
that is gone resets the connection. So the connection stays open for the answer, and `has_arrived` tells which it was.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_MOST_SECONDS = 10.0
"""How long an answer may take to arrive at a half-closed client."""
_PAUSE_SECONDS = 0.005


class HttpConnection(web.RequestHandler):
    """A connection that stays open for the answer after its client has sent a whole request and half-closed it."""

    __slots__ = ("is_half_closed",)

    def __init__(self, server: web.Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.is_half_closed = False
        """Whether the client has closed its side."""

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]  (asyncio's says so)
        """The client has closed its side; returns whether to keep the connection open."""
        self.is_half_closed = True
        is_idle = self._waiter is not None and not self._waiter.done()
        if is_idle or self._parser is None:
            return False
        try:
            self._parser.feed_eof()
        except HttpProcessingError:  # the request is incomplete
            return False
        self.close()  # after the answer
        return True


def may_have_left(http: web.Request) -> bool:
    """Whether a request's client has closed its side of the connection, or the connection is lost."""
    transport, protocol = http.transport, http.protocol
    is_half_closed = isinstance(protocol, HttpConnection) and protocol.is_half_closed
    return is_half_closed or transport is None or transport.is_closing()


async def has_arrived(http: web.Request) -> bool:
    """Whether the system of a half-closed client has acknowledged the answer, and not reset the connection."""
    until = asyncio.get_running_loop().time() + _MOST_SECONDS
    while asyncio.get_running_loop().time() < until:
        transport = http.transport
        if transport is None or transport.is_closing():
            return False
        descriptor: int = transport.get_extra_info("socket").fileno()
        is_acknowledged = not transport.get_write_buffer_size() and not _unacknowledged_bytes(descriptor)
        if _is_reset(descriptor):
            return False
        if is_acknowledged:
            return True
        await asyncio.sleep(_PAUSE_SECONDS)
    return False


def _is_reset(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _unacknowledged_bytes(descriptor: int) -> int:
    """How many written bytes are not acknowledged yet; 0 if the system cannot tell."""
    try:
        return struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0]
    except OSError:
        return 0
