"""Messages over a socket: each is sent as four bytes of length and its own bytes.

A message that announces more than the limit ends the connection before anything of it is kept.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

MAX_MESSAGE_BYTES = 20 * 2**20
"""Enough for the longest observation in the widest characters, and its message."""
_HEADER_BYTES = 4
_READ_BYTES = 2**16


class MessageTooLong(Exception):
    """A message exceeds the limit."""


def frame(message: bytes) -> bytes:
    """A message as it is sent.

    Raises:
        MessageTooLong: It is longer than any may be.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise MessageTooLong(f"a message of {len(message):,} bytes, more than the {MAX_MESSAGE_BYTES:,} allowed")
    return len(message).to_bytes(_HEADER_BYTES, "little") + message


class FrameDecoder:
    """Cuts a byte stream into messages. Keeps at most one incomplete message.

    Example:
        >>> decoder = FrameDecoder()
        >>> stream = frame(b"hello") + frame(b"you")
        >>> [bytes(message) for message in decoder.feed(stream[:12])]
        [b'hello']
        >>> decoder.buffered, [bytes(message) for message in decoder.feed(stream[12:])]
        (3, [b'you'])
    """

    __slots__ = ("_needed", "_partial")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed = _HEADER_BYTES
        """The size that the buffer must reach before it can have a message."""

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete message."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that are now complete.

        Raises:
            MessageTooLong: The next message is longer than any may be; nothing of it is kept.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return []
            data, self._partial = bytes(self._partial), bytearray()
        view, start, messages = memoryview(data), 0, list[memoryview]()
        self._needed = _HEADER_BYTES
        while len(data) - start >= _HEADER_BYTES:
            length = int.from_bytes(view[start : start + _HEADER_BYTES], "little")
            if length > MAX_MESSAGE_BYTES:
                raise MessageTooLong(
                    f"it sent a message of {length:,} bytes, more than the {MAX_MESSAGE_BYTES:,} allowed"
                )
            if len(data) - start - _HEADER_BYTES < length:
                self._needed = _HEADER_BYTES + length
                break
            start += _HEADER_BYTES + length
            messages.append(view[start - length : start])
        self._partial += view[start:]
        return messages


class Channel:
    """One end of a connection, on an event loop.

    Args:
        connection: A connected socket; the channel closes it.
        receive: Called with each message.
        lost: Called once when the other side is gone, with what was wrong; empty if it just closed its end.

    Example:
        >>> async def greet() -> bytes:
        ...     here, there = socket.socketpair()
        ...     received = asyncio.get_running_loop().create_future()
        ...     server = Channel(there, lambda message: received.set_result(bytes(message)), lambda reason: None)
        ...     client = Channel(here, lambda message: None, lambda reason: None)
        ...     client.send(b"hello")
        ...     message = await received
        ...     client.close()
        ...     server.close()
        ...     return message
        >>> asyncio.run(greet())
        b'hello'
    """

    def __init__(
        self, connection: socket.socket, receive: Callable[[memoryview], None], lost: Callable[[str], None]
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._receive = receive
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._decoder = FrameDecoder()
        self.unsent_bytes = 0
        self.is_open = True
        self._loop.add_reader(connection, self._read)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that wait to be sent, and bytes of an incomplete message that was received."""
        return self.unsent_bytes + self._decoder.buffered

    def send(self, message: bytes) -> None:
        """Send a message; the rest that the socket does not take at once is buffered. A closed channel drops it.

        Raises:
            MessageTooLong: It is longer than any may be.
        """
        if not self.is_open:
            return
        framed, sent = frame(message), 0
        if not self._unsent:
            try:
                sent = self._connection.send(framed)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:  # `_read` notices it as well, and reports why
                return
        if sent < len(framed):
            if not self._unsent:
                self._loop.add_writer(self._connection, self._write)
            self._unsent.append(memoryview(framed)[sent:])
            self.unsent_bytes += len(framed) - sent

    def close(self) -> None:
        """End the connection. Safe to call twice; `lost` is not called."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._unsent.clear()
        self._decoder = FrameDecoder()
        self.unsent_bytes = 0
        self._connection.close()

    def _fail(self, reason: str) -> None:
        if self.is_open:
            self.close()
            self._lost(reason)

    def _write(self) -> None:
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent[0])
                self.unsent_bytes -= sent
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                    return
                self._unsent.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(f"the connection broke ({error.strerror or error})")
            return
        self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
            messages = self._decoder.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(f"the connection broke ({error.strerror or error})")
            return
        except MessageTooLong as error:
            self._fail(str(error))
            return
        if not data:
            self._fail("")
        for message in messages:
            if self.is_open:
                self._receive(message)
