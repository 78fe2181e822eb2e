"""Messages over a socket, on an event loop.

Nothing is read that could not be held: a message that says it is longer than it may be ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from turnsmith.env.isolation.frames import FrameReader, FrameTooLong, frame

_AT_ONCE = 2**16


class Channel:
    """One end of a connection. `receive` gets each message's bytes; `lost` is called once, with what was wrong, which
    is nothing if the other side has just closed its end.

    Example:
        >>> async def greet() -> bytes:
        ...     here, there = socket.socketpair()
        ...     heard = asyncio.get_running_loop().create_future()
        ...     ear = Channel(there, lambda message: heard.set_result(bytes(message)), lambda reason: None)
        ...     mouth = Channel(here, lambda message: None, lambda reason: None)
        ...     mouth.send(b"hello")
        ...     answer = await heard
        ...     mouth.close()
        ...     ear.close()
        ...     return answer
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
        self._frames = FrameReader()
        self.unsent_bytes = 0
        self.is_open = True
        self._loop.add_reader(connection, self._read)

    @property
    def bytes_in_flight(self) -> int:
        """What waits to be sent, and what has come of a message that is not whole yet."""
        return self.unsent_bytes + self._frames.held

    def send(self, message: bytes) -> None:
        """Send a message; what the socket does not take at once waits here. After the end it goes nowhere.

        Raises:
            FrameTooLong: It is longer than a message may be.
        """
        if not self.is_open:
            return
        framed, sent = frame(message), 0
        if not self._unsent:
            try:
                sent = self._connection.send(framed)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:  # the reader finds out, and says why
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
        self._frames = FrameReader()
        self.unsent_bytes = 0
        self._connection.close()

    def _end(self, reason: str) -> None:
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
            self._end(f"the connection broke ({error.strerror or error})")
            return
        self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"the connection broke ({error.strerror or error})")
            return
        if not data:
            self._end("")
            return
        try:
            found = self._frames.feed(data)
        except FrameTooLong as error:
            self._end(str(error))
            return
        for message in found:
            if self.is_open:
                self._receive(message)
