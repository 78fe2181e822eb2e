"""One worker, as seen from here: calls that wait for their answers, and what is told when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.frames import FrameTooLong
from turnsmith.env.isolation.launch import WorkerHandle, describe_exit, launch
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.isolation.wire import Channel
from turnsmith.errors import EnvironmentFailure, WorkerLost

_START_SECONDS = 60.0
_TICK = 1.0
_ANSWER_SECONDS = 5.0
"""How long a worker may leave a ping unanswered when a call of it is late."""
_MOST_UNSENT = 16 * 2**20
"""Bytes that may wait to be sent to one worker before callers have to wait."""
Start = tuple[int, int]
"""Where an episode begins: the number of its environment's definition, and its seed."""


class Connection:
    """Sends calls to a worker and hands its answers to whoever waits for them."""

    def __init__(self, isolation: Isolation, on_lost: Callable[[Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._isolation = isolation
        self._on_lost = on_lost
        self._channel: Channel | None = None
        self._pending: dict[int, tuple[asyncio.Future[Any], float, int]] = {}
        """Calls that wait: who waits for the answer, since when, and for which environment."""
        self._calls = 0
        self._pinged = 0.0
        """When the ping that is not answered yet was sent; 0: there is none."""
        self._watch: asyncio.TimerHandle | None = None
        self._burial: asyncio.Task[None] | None = None
        self._how = ""
        """What its keeper said about its end."""
        self.launched: WorkerHandle | None = None
        self.environments: dict[int, Start] = {}
        """Those that it hosts for episodes which go on, and where they began."""
        self.suspects: set[Start] = set()
        """Where those began that were doing something when it was lost."""
        self.taught: set[int] = set()
        """Numbers of the classes and functions that it knows."""
        self.call_seconds = 0.0
        """The longest time that a call of any environment in it may take."""
        self.is_draining = False
        """Whether it gets no further environments, and is ended after those that it has."""
        self.is_open = True
        self.why_lost = ""
        """How it ended, once that is known."""
        self.ready = self._loop.create_task(self._start())
        self.ready.add_done_callback(_look_at)

    @property
    def pending(self) -> int:
        """Calls that wait for an answer."""
        return len(self._pending)

    @property
    def bytes_in_flight(self) -> int:
        """What waits to be sent, and what has come of messages that are not whole yet."""
        return self._channel.bytes_in_flight if self._channel else 0

    def next_call(self) -> int:
        """A number for a call."""
        self._calls += 1
        return self._calls

    def teach(self, definition: m.Define) -> None:
        """Tell the worker what a number stands for, once."""
        if definition.number not in self.taught and self._channel is not None:
            self.taught.add(definition.number)
            self._channel.send(m.encode(definition))

    async def call(self, request: Any) -> Any:
        """Send a request and wait for its answer.

        Raises:
            WorkerLost: The worker is gone, or goes before it has answered.
            EnvironmentFailure: What was to be sent cannot be.
        """
        if self.why_lost or self._channel is None:
            raise WorkerLost(self.why_lost)
        while self._channel.unsent_bytes > _MOST_UNSENT:
            await asyncio.sleep(0.01)
        try:
            message = m.encode(request)
            future = self._loop.create_future()
            self._pending[request.call] = (future, self._loop.time(), request.environment)
            self._channel.send(message)
        except (TypeError, ValueError, OverflowError, RecursionError, FrameTooLong) as error:
            self._pending.pop(request.call, None)
            raise EnvironmentFailure(f"What the environment is sent cannot travel: {error}") from error
        if self._watch is None:
            self._watch = self._loop.call_later(_TICK, self._look)
        try:
            return await future
        finally:
            self._pending.pop(request.call, None)

    def drain(self) -> None:
        """Give it no further environments, and end it after those that it has."""
        self.is_draining = True
        if not self.environments:
            self.end("was ended because a call in it hung")

    def end(self, reason: str) -> None:
        """End the worker now, and everything that it started."""
        if not self.is_open:
            return
        self.is_open = False
        if self._channel is not None:
            self._channel.close()
        self.ready.cancel()
        self._burial = self._loop.create_task(self._bury(reason))
        self._on_lost(self)

    async def fate(self) -> str:
        """How it ended; waits until that is known."""
        if self._burial is not None:
            await asyncio.shield(self._burial)
        return self.why_lost

    async def gone(self) -> None:
        """Wait until nothing of the worker is left."""
        with suppress(WorkerLost, asyncio.CancelledError):
            await self.ready
        if self.launched is not None:
            await self.launched.ended()
            self.launched.connection.close()

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                self.launched = await launch(self._isolation)
                heard = self._loop.create_future()
                self._pending[0] = (heard, self._loop.time(), 0)
                self._channel = Channel(self.launched.connection, self._receive, self._lost)
                ready = await heard
            if not isinstance(ready, m.Ready) or ready.protocol != m.PROTOCOL:
                raise WorkerLost("The worker for environments belongs to another version of turnsmith.")
        except TimeoutError:
            self.end(f"did not start within {_START_SECONDS:g} seconds")
            raise WorkerLost("A worker for environments did not start in time.") from None
        except WorkerLost:
            self.end("could not be started")
            raise
        finally:
            self._pending.pop(0, None)

    def _receive(self, message: memoryview) -> None:
        try:
            reply = m.read_reply(message)
        except m.BadMessage:
            self._lost("it sent something that is not a message")
            return
        waiting = self._pending.get(reply.call)
        if isinstance(reply, m.ExitReport):
            busy = set(reply.busy)
            self._how = describe_exit(reply.code, self._isolation)
            self._end_by_itself(busy)
        elif waiting is not None:
            if not waiting[0].done():
                waiting[0].set_result(reply)
        elif reply.call < 0:
            self._pinged = 0.0
        elif isinstance(reply, m.ErrorReply | m.ToolReply) and reply.is_stuck:
            self.drain()  # nobody waits any more, but its thread still runs

    def _lost(self, reason: str) -> None:
        """The other side is gone without a word, or is not what it should be."""
        self._end_by_itself(self._waited_for(), f"was ended: {reason}" if reason else "")

    def _end_by_itself(self, busy: set[int], reason: str = "") -> None:
        self.suspects = {start for environment, start in self.environments.items() if environment in busy}
        self.end(reason)

    def _waited_for(self, longer_than: float = 0.0) -> set[int]:
        """Environments that a call waits for, and has waited so long."""
        now = self._loop.time()
        return {environment for _, since, environment in self._pending.values() if now - since >= longer_than}

    async def _bury(self, reason: str) -> None:
        """Find out how it ended and tell everyone who waits for it."""
        how = await self.launched.ended() if self.launched is not None else ""
        self.why_lost = f"The worker process that ran the environment {reason or self._how or how}."
        for future, _, _ in list(self._pending.values()):
            if not future.done():
                future.set_exception(WorkerLost(self.why_lost))
        self._pending.clear()

    def _look(self) -> None:
        """Once a second while calls wait: a worker with a late call must at least answer a ping."""
        self._watch = None
        if not self.is_open or not self._pending or self._channel is None:
            return
        now = self._loop.time()
        _, oldest, _ = next(iter(self._pending.values()))
        if now - oldest > self.call_seconds + _TICK:
            if not self._pinged:
                self._pinged = now
                self._channel.send(m.encode(m.Ping(-1)))
            elif now - self._pinged > _ANSWER_SECONDS:
                late = self._waited_for(self.call_seconds)
                self._end_by_itself(late, f"did not answer for {_ANSWER_SECONDS:g} seconds, after a call took too long")
                return
        else:
            self._pinged = 0.0
        self._watch = self._loop.call_later(_TICK, self._look)


def _look_at(task: asyncio.Task[None]) -> None:
    """Those who wait are told why it did not start; if nobody waits, nobody needs to be."""
    if not task.cancelled():
        task.exception()
