"""A slow or lossy cable between two interfaces. A program: `python -m tests.e2e.wire ONE OTHER SECONDS LOSS LOSS_BACK`.

Linux has netem for this, but many kernels are built without it; raw sockets are in all of them. Frames keep the header
that says what is left to the network card (checksums, segments of large packets): a program may carry 64 KiB at a time.
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections import deque

_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_ALL_FRAMES = 3
_LARGEST = 1 << 17


def _open(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES))
    opened.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    opened.bind((interface, _ALL_FRAMES))
    opened.setblocking(False)
    return opened


def carry(one: str, other: str, seconds: float, losses: tuple[float, float], seed: int = 0) -> None:
    """Carry frames for ever: each `seconds` later, or not at all, with one probability from `one` and one to it."""
    ends = [_open(one), _open(other)]
    draw, under_way = random.Random(seed), deque[tuple[float, int, bytes]]()
    print("ready", flush=True)
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], wait)[0]:
            try:
                while True:
                    frame = end.recv(_LARGEST)
                    if draw.random() >= losses[ends.index(end)]:
                        under_way.append((time.monotonic() + seconds, ends.index(end), frame))
            except BlockingIOError:
                pass
        while under_way and under_way[0][0] <= time.monotonic():
            _, came_from, frame = under_way.popleft()
            try:
                ends[1 - came_from].send(frame)
            except (BlockingIOError, OSError):  # as of a full card: TCP sends it again
                continue


if __name__ == "__main__":
    carry(sys.argv[1], sys.argv[2], float(sys.argv[3]), (float(sys.argv[4]), float(sys.argv[5])))
