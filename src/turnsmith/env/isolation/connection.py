"""The connection to one worker: calls that wait for their replies, and what happens when the worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from turnsmith.concurrency.clocks import Bottleneck, Clock, Wait, paused
from turnsmith.env.asking import NO_EPISODE, current_asker
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.launch import WorkerProcess, describe_exit, tell_of_limit, tell_of_wear
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.isolation.wire import Channel, MessageTooLong
from turnsmith.errors import EnvironmentFailure, WorkerLost, describe_failure, internal_error, is_ours

_START_SECONDS = 60.0
_CHECK_SECONDS = 1.0
ANSWER_SECONDS = 30.0
"""How much longer than the worker this side waits for a call; the worker should have reported a time-out by then."""
_PING_SECONDS = 5.0
"""How long a worker may leave a ping unanswered once one of its calls is late."""
_MAX_UNSENT_BYTES = 16 * 2**20
"""Bytes that may wait to be sent to one worker before callers have to wait."""


@dataclass(slots=True)
class _PendingCall:
    reply: asyncio.Future[Any]
    since: float
    environment: int
    context: Context = field(default_factory=copy_context)
    """The caller's future, with its clocks."""
    wait: Wait | None = None
    """Set while the call waits for its turn in the worker."""

    def set_waiting(self, message: m.Waiting) -> None:
        """Stop or restart the caller's clocks."""
        if message.yes and self.wait is None:
            self.wait = self.context.run(Wait, Bottleneck(message.what, message.advice))
        elif not message.yes:
            self.end_wait()

    def end_wait(self) -> None:
        """Restart the caller's clocks."""
        wait, self.wait = self.wait, None
        if wait is not None:
            wait.end()


class Connection:
    """Sends requests to one worker and passes its replies to the callers.

    Args:
        isolation: Where the worker runs, and what it may use.
        on_lost: Called once when the worker has ended, or is about to be ended.
    """

    def __init__(self, isolation: Isolation, on_lost: Callable[[Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._isolation = isolation
        self._on_lost = on_lost
        self._channel: Channel | None = None
        self._pending: dict[int, _PendingCall] = {}
        self._calls = 0
        self._pinged_at = 0.0
        """When the unanswered ping was sent; 0 if there is none."""
        self._check_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._exit = ""
        """How the worker ended, as its supervisor reported it."""
        self._worker: WorkerProcess | None = None
        self.environments: dict[int, tuple[int, int]] = {}
        """The environments that it hosts: the number of each definition, and the seed."""
        self.suspects: set[tuple[int, int]] = set()
        """Environments with a call in progress when the worker was lost: any of them may be the cause."""
        self.defined: set[int] = set()
        """Numbers of the classes and functions that the worker knows."""
        self.call_seconds = 0.0
        """The longest timeout of any environment in it."""
        self.is_draining = False
        """Whether it gets no more environments, and is ended after its last one."""
        self.is_stuck = False
        """Whether that is because a call in it hangs."""
        self.is_open = True
        self.why_lost = ""
        """How it ended; empty until that is known."""
        self.ready = self._loop.create_task(self._start())
        self.ready.add_done_callback(_mark_retrieved)

    @property
    def pending(self) -> int:
        """Calls that wait for a reply."""
        return len(self._pending)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that wait to be sent, and bytes of an incomplete message that was received."""
        return self._channel.bytes_in_flight if self._channel else 0

    def next_call(self) -> int:
        """A number for a call."""
        self._calls += 1
        return self._calls

    def define(self, definition: m.Define) -> None:
        """Send a definition, once."""
        if definition.number not in self.defined and self._channel is not None:
            self.defined.add(definition.number)
            self._channel.send(m.encode(definition))

    async def call(self, request: Any, seconds: float) -> Any:
        """Send a request and wait for its reply.

        Args:
            request: The request.
            seconds: What the worker may take for it, once its turn has come; a little later it is given up here.

        Raises:
            OutOfTime: There was no reply, though the worker has a limit of its own and is alive.
            WorkerLost: The worker is gone, or ends before it has replied.
            EnvironmentFailure: The request cannot be sent.
        """
        if self.why_lost or self._channel is None:
            raise WorkerLost(self.why_lost)
        while self._channel.unsent_bytes > _MAX_UNSENT_BYTES:
            await asyncio.sleep(0.01)
        async with Clock(seconds + ANSWER_SECONDS):
            return await self._reply_to(request, self._channel)

    async def _reply_to(self, request: Any, channel: Channel) -> Any:
        reply = self._loop.create_future()
        pending = self._pending[request.call] = _PendingCall(reply, self._loop.time(), request.environment)
        try:
            channel.send(m.encode(request))
        except (TypeError, ValueError, OverflowError, RecursionError, MessageTooLong) as error:
            self._pending.pop(request.call, None)
            raise EnvironmentFailure(f"What the environment is sent cannot leave this process: {error}") from error
        if self._check_timer is None:
            self._check_timer = self._loop.call_later(_CHECK_SECONDS, self._check_alive)
        try:
            return await reply
        finally:
            self._pending.pop(request.call, None)
            pending.end_wait()

    def drain(self, *, is_stuck: bool = True) -> None:
        """Give it no more environments, and end it after its last one."""
        self.is_draining = True
        self.is_stuck |= is_stuck
        if not self.environments:
            self.end("was ended because " + ("a call in it hung" if self.is_stuck else "it was used up"))

    def end(self, reason: str) -> None:
        """End the worker now, and every process that it started."""
        if not self.is_open:
            return
        self.is_open = False
        if self._channel is not None:
            self._channel.close()
        self.ready.cancel()
        self._ending = self._loop.create_task(self._finish(reason))
        self._on_lost(self)

    async def wait_until_lost(self) -> str:
        """How it ended; waits until that is known."""
        if self._ending is not None:
            await asyncio.shield(self._ending)
        return self.why_lost

    async def wait_until_ended(self) -> None:
        """Wait until no process of the worker is left."""
        with suppress(WorkerLost, asyncio.CancelledError):
            await self.ready
        if self._worker is not None:
            await self._worker.wait()
            self._worker.connection.close()
        if self._ending is not None:
            await asyncio.wait((self._ending,))

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                self._worker = WorkerProcess(self._isolation)
                first_reply = self._loop.create_future()
                self._pending[0] = _PendingCall(first_reply, self._loop.time(), 0)
                self._channel = Channel(self._worker.connection, self._receive, self._connection_lost)
                await first_reply
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
            self._connection_lost("it sent something that is not a message")
            return
        pending = self._pending.get(reply.call)
        if isinstance(reply, m.ExitReport | m.UsedUp):
            self._take_report(reply)
        elif isinstance(reply, m.Ask):
            self._begin_answer(reply, pending)
        elif isinstance(reply, m.Waiting):
            if pending is not None:
                pending.set_waiting(reply)
        elif pending is not None:
            if not pending.reply.done():
                pending.reply.set_result(reply)
        elif reply.call < 0:
            self._pinged_at = 0.0
        elif isinstance(reply, m.ErrorReply | m.ToolReply) and reply.is_stuck:
            self.drain()  # the caller is gone, but the call's thread still runs

    def _take_report(self, report: m.ExitReport | m.UsedUp) -> None:
        """Handle a message that concerns the whole worker."""
        if isinstance(report, m.UsedUp):
            tell_of_wear(report)
            self.drain(is_stuck=False)
            return
        self._exit = describe_exit(report.code, self._isolation)
        tell_of_limit(report.code, self._isolation, len(self.environments))
        self._lose(self._environments_waiting())

    def _begin_answer(self, asked: m.Ask, pending: _PendingCall | None) -> None:
        if pending is None:  # no reply follows
            return
        task = self._loop.create_task(self._answer(asked), context=pending.context)
        self._answering.add(task)  # an event loop keeps only weak references to its tasks
        task.add_done_callback(self._answering.discard)

    async def _answer(self, asked: m.Ask) -> None:
        """Answer an environment's question to another player, in the context of the call that asks."""
        asker, text, failure = current_asker(), "", ""
        try:
            with paused():
                if asker is None:
                    raise EnvironmentFailure(NO_EPISODE)
                text = await asker(asked.player, asked.messages)
        except Exception as error:
            pending = self._pending.get(asked.call)
            if is_ours(error) and pending is not None and not pending.reply.done():
                pending.reply.set_exception(internal_error(error))
            is_told = isinstance(error, EnvironmentFailure)
            failure = str(error) if is_told else describe_failure(f"The player {asked.player!r}", error)
        if self._channel is not None and self.is_open:
            self._channel.send(m.encode(m.Answer(asked.call, asked.number, text, failure)))

    def _connection_lost(self, reason: str) -> None:
        """The other side has ended without an exit report, or breaks the protocol."""
        self._lose(self._environments_waiting(), f"was ended: {reason}" if reason else "")

    def _lose(self, environments: set[int], reason: str = "") -> None:
        self.suspects = {start for number, start in self.environments.items() if number in environments}
        self.end(reason)

    def _environments_waiting(self, longer_than: float = 0.0) -> set[int]:
        """Environments with a call that has been in progress for at least `seconds`."""
        now = self._loop.time()
        return {call.environment for call in self._pending.values() if now - call.since >= longer_than}

    async def _finish(self, reason: str) -> None:
        """Find out how the worker ended and fail every call that waits for it."""
        exit_reason = await self._worker.wait() if self._worker is not None else ""
        self.why_lost = f"The worker process that ran the environment {reason or self._exit or exit_reason}."
        for call in list(self._pending.values()):
            if not call.reply.done():
                call.reply.set_exception(WorkerLost(self.why_lost))
        self._pending.clear()

    def _check_alive(self) -> None:
        """Once a second while calls wait: a worker with a late call must at least answer a ping."""
        self._check_timer = None
        if not self.is_open or not self._pending or self._channel is None:
            return
        now = self._loop.time()
        oldest = next(iter(self._pending.values())).since
        if now - oldest <= self.call_seconds + _CHECK_SECONDS:
            self._pinged_at = 0.0
        elif not self._pinged_at:
            self._pinged_at = now
            self._channel.send(m.encode(m.Ping(-1)))
        elif now - self._pinged_at > _PING_SECONDS:
            late = self._environments_waiting(self.call_seconds)
            self._lose(late, f"did not answer for {_PING_SECONDS:g} seconds, after a call took too long")
            return
        self._check_timer = self._loop.call_later(_CHECK_SECONDS, self._check_alive)


def _mark_retrieved(task: asyncio.Task[None]) -> None:
    """Callers get the reason why the worker did not start; without callers, asyncio must not log it."""
    if not task.cancelled():
        task.exception()
