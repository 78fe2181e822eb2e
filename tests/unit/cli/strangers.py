"""Holds connections to a server without its key, and opens each one anew that the server closes: PORT NUMBER."""

from __future__ import annotations

import asyncio
import sys

HEADERS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
KINDS = (
    (HEADERS, b"X-More: 1\r\n"),  # headers that never end
    (HEADERS + b"Content-Length: 1000000\r\n\r\n", b"{"),  # a slow body
    (b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", b""),  # idle, after an answer
)
PAUSE_SECONDS = 10.0


async def intrude(port: int, first: bytes, more: bytes) -> None:
    """Be one stranger."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            while not reader.at_eof():
                writer.write(more)
                try:
                    await asyncio.wait_for(reader.read(4096), 1.0)
                except TimeoutError:
                    pass
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(PAUSE_SECONDS)


async def main(port: int, number: int) -> None:
    """Be many."""
    await asyncio.gather(*(intrude(port, *KINDS[one % 3]) for one in range(number)))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
