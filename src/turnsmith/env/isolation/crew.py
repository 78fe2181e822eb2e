"""The threads of a worker. They read the connection themselves, so that a plain step is one way in and out.

Whoever has read a step does it and sends the answer, in the same thread; another thread reads on meanwhile. No thread
has to be woken on the way from the question to the answer, which is most of what a step would cost otherwise.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue

from turnsmith.env.isolation.frames import FrameReader, FrameTooLong, frame
from turnsmith.env.isolation.messages import BadMessage

_AT_ONCE = 2**16


class Crew:
    """Daemon threads that take jobs in order; another one is started when none is free, up to `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._process = os.getpid()
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0

    def put(self, job: Callable[[], None]) -> None:
        """Have `job()` called soon. It must not raise."""
        with self._lock:
            self._free -= 1
            grow = self._free < 0 and self._threads < self._limit
            if grow:
                self._threads += 1
                self._free += 1
        self._jobs.put(job)
        if grow:
            threading.Thread(target=self._work, name=f"turnsmith-crew-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            job()
            if os.getpid() != self._process:  # a step forked, and this is the copy: it has nothing more to do
                os._exit(0)
            del job  # an idle thread must not keep an environment's objects alive
            with self._lock:
                self._free += 1


class Wire:
    """The connection of a worker: read by its crew, written by any thread.

    `sort` gets each message in the order they came, and returns what a thread has to do for it, if anything. Sending
    waits where the other side does not read: then there are no further answers to keep in memory either.
    """

    def __init__(
        self,
        connection: socket.socket,
        crew: Crew,
        sort: Callable[[memoryview], Callable[[], None] | None],
        over: Callable[[], object],
    ) -> None:
        connection.setblocking(True)
        self._connection = connection
        self._crew = crew
        self._sort = sort
        self._over = over
        self._sending = threading.Lock()
        self._frames = FrameReader()
        os.register_at_fork(after_in_child=self._forget)

    def read(self) -> None:
        """Wait for something to do; hand on reading, and all of that but the last, which is done here."""
        jobs: list[Callable[[], None]] = []
        while not jobs:
            try:
                data = self._connection.recv(_AT_ONCE)
                found = self._frames.feed(data)
                jobs = [job for job in map(self._sort, found) if job is not None]
            except (OSError, FrameTooLong, BadMessage):  # gone, or not somebody to talk to
                data = b""
            if not data:
                self._over()
                return
        self._crew.put(self.read)
        for job in jobs[:-1]:
            self._crew.put(job)
        jobs[-1]()

    def send(self, message: bytes) -> None:
        """Send a message, from any thread; when nobody is there any more, it goes nowhere."""
        try:
            with self._sending:
                self._connection.sendall(frame(message))
        except OSError:
            pass

    def _forget(self) -> None:
        """In a process that an environment has forked: what goes on here is none of the other side's business."""
        self._connection.close()
