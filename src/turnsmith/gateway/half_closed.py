"""Connections whose client has said that it sends no more: it may wait for its answer, or be gone.

Both look the same until there is an answer. The system of a client that waits takes it; that of one that is gone
refuses it. So the connection stays open for the answer, and `has_arrived` tells which of the two it was.
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
"""For an answer to arrive at a client that sends no more."""
_PAUSE_SECONDS = 0.005


class HttpConnection(web.RequestHandler):
    """A connection that stays open for the answer if its client has sent a whole request, and sends no more."""

    __slots__ = ("has_ended",)

    def __init__(self, server: web.Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.has_ended = False
        """Whether its client sends no more."""

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]  (asyncio's says so)
        """Whether to stay open; the client sends no more."""
        self.has_ended = True
        is_idle = self._waiter is not None and not self._waiter.done()
        if is_idle or self._parser is None:
            return False
        try:
            self._parser.feed_eof()
        except HttpProcessingError:  # in the middle of a request, which nobody can answer
            return False
        self.close()  # once it is answered
        return True


def has_ended(http: web.Request) -> bool:
    """Whether the client of a request sends no more, or its connection is lost."""
    transport, protocol = http.transport, http.protocol
    ended = isinstance(protocol, HttpConnection) and protocol.has_ended
    return ended or transport is None or transport.is_closing()


async def has_arrived(http: web.Request) -> bool:
    """Whether what was sent to a client that sends no more has arrived at its system, and was not refused."""
    until = asyncio.get_running_loop().time() + _MOST_SECONDS
    while asyncio.get_running_loop().time() < until:
        transport = http.transport
        if transport is None or transport.is_closing():
            return False
        descriptor: int = transport.get_extra_info("socket").fileno()
        is_acknowledged = not transport.get_write_buffer_size() and not _bytes_on_their_way(descriptor)
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


def _bytes_on_their_way(descriptor: int) -> int:
    """How many bytes were written and not acknowledged; 0 where the system does not tell."""
    try:
        return struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))[0]
    except OSError:
        return 0
