"""Messages come out as they went in, however they are cut on the way, and never more than fits."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from turnsmith.env.isolation.wire import MAX_MESSAGE_BYTES, Channel, MessageTooLong


class Ends:
    """Two ends of a connection, and what the second one heard."""

    def __init__(self) -> None:
        self.raw, there = socket.socketpair()
        self.heard: list[bytes] = []
        self.lost: list[str] = []
        self.channel = Channel(there, lambda message: self.heard.append(bytes(message)), self.lost.append)

    async def until(self, messages: int) -> None:
        for _ in range(1000):
            if len(self.heard) >= messages or self.lost:
                return
            await asyncio.sleep(0.001)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


async def test_messages_may_come_in_any_pieces():
    ends, draws = Ends(), random.Random(3)
    messages = [draws.randbytes(draws.choice((0, 1, 3, 70, 4000, 90_000))) for _ in range(60)]
    stream = b"".join(map(framed, messages))
    place = 0
    while place < len(stream):
        size = draws.choice((1, 2, 5, 100, 8000))
        ends.raw.sendall(stream[place : place + size])
        place += size
        await asyncio.sleep(0)
    await ends.until(len(messages))
    assert ends.heard == messages
    assert ends.channel.bytes_in_flight == 0
    ends.channel.close()
    ends.raw.close()


async def test_what_the_other_side_does_not_take_waits_and_is_counted():
    here, there = socket.socketpair()
    channel = Channel(here, lambda message: None, lambda reason: None)
    message = b"x" * 3_000_000
    channel.send(message)
    channel.send(b"last")
    assert 2_000_000 < channel.bytes_in_flight < 3_000_020
    got = b""
    there.setblocking(False)
    while len(got) < len(message) + 12:
        try:
            got += there.recv(1_000_000)
        except BlockingIOError:
            await asyncio.sleep(0.001)
    assert got == framed(message) + framed(b"last")
    await asyncio.sleep(0)
    assert channel.bytes_in_flight == 0
    channel.close()
    there.close()


async def test_a_message_that_is_too_long_ends_the_connection_unread():
    ends = Ends()
    ends.raw.sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little") + b"x" * 100)
    await ends.until(1)
    assert ends.lost == ["it sent a message of 20,971,521 bytes, more than the 20,971,520 allowed"]
    assert ends.heard == []
    assert not ends.channel.is_open
    ends.raw.close()


async def test_the_end_is_told_once_and_only_if_it_comes_from_outside():
    ends = Ends()
    ends.raw.sendall(framed(b"bye"))
    ends.raw.close()
    await ends.until(2)
    assert (ends.heard, ends.lost) == ([b"bye"], [""])
    ends.channel.send(b"too late")  # goes nowhere
    ends.channel.close()
    other = Ends()
    other.channel.close()
    other.raw.close()
    assert other.lost == []


async def test_a_long_message_is_not_sent():
    ends = Ends()
    with pytest.raises(MessageTooLong, match="more than the 20,971,520 allowed"):
        ends.channel.send(bytes(MAX_MESSAGE_BYTES + 1))
    ends.channel.close()
    ends.raw.close()
