"""Where one message ends and the next begins: each is sent as four bytes of length and its own bytes."""

from __future__ import annotations

MOST_FRAME = 20 * 2**20
"""Bytes of one message: the longest observation, in the widest characters, and what comes with it."""
_HEAD = 4


class FrameTooLong(Exception):
    """The other side says that its message is longer than any may be."""


def frame(message: bytes) -> bytes:
    """A message as it is sent.

    Raises:
        FrameTooLong: It is longer than any may be.
    """
    if len(message) > MOST_FRAME:
        raise FrameTooLong(f"a message of {len(message):,} bytes, more than the {MOST_FRAME:,} allowed")
    return len(message).to_bytes(_HEAD, "little") + message


class FrameReader:
    """Cuts what comes in into messages. Holds at most one that is not whole yet.

    Example:
        >>> frames = FrameReader()
        >>> stream = frame(b"hello") + frame(b"you")
        >>> [bytes(message) for message in frames.feed(stream[:12])]
        [b'hello']
        >>> frames.held, [bytes(message) for message in frames.feed(stream[12:])]
        (3, [b'you'])
    """

    __slots__ = ("_needed", "_partial")

    def __init__(self) -> None:
        self._partial = bytearray()
        self._needed = _HEAD
        """How long the part must become before it is worth a look."""

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole yet."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that are whole now; they stay valid.

        Raises:
            FrameTooLong: The next message is longer than any may be; nothing of it is kept.
        """
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return []
            data, self._partial = bytes(self._partial), bytearray()
        whole, start, found = memoryview(data), 0, list[memoryview]()
        self._needed = _HEAD
        while len(data) - start >= _HEAD:
            length = int.from_bytes(whole[start : start + _HEAD], "little")
            if length > MOST_FRAME:
                raise FrameTooLong(f"it sent a message of {length:,} bytes, more than the {MOST_FRAME:,} allowed")
            if len(data) - start - _HEAD < length:
                self._needed = _HEAD + length
                break
            start += _HEAD + length
            found.append(whole[start - length : start])
        if start < len(data):
            self._partial += whole[start:]
        return found
