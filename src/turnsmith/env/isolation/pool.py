"""The workers of one event loop: their number, the choice of a worker for each environment, and their end.

An environment that brings its worker down takes the others in it along. All of their episodes are retried, by the
failure policy; those that had a call in progress, any of which may be the culprit, are suspects. A second loss is
hardly a coincidence: from then on a suspect runs alone in a worker, of which there are only a few.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from turnsmith.concurrency.clocks import Bottleneck
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.connection import Connection
from turnsmith.env.isolation.serialization import define_function, define_spec
from turnsmith.env.isolation.settings import ENVIRONMENTS, Isolation
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import WorkerLost

_MAX_DEFINITIONS = 64
"""Classes and functions whose packed form is cached."""
_MAX_SUSPECTS = 1024
_SOLO_WORKERS = 8
"""Workers for suspects, with one environment each."""


@dataclass(frozen=True, slots=True)
class IsolationStatus:
    """The current state of this process's workers.

    Example:
        >>> isolation_status()
        IsolationStatus(workers=0, draining=0, environments=0, waiting=0, calls=0, bytes_in_flight=0, lost=0)
    """

    workers: int = 0
    """Worker processes that take environments: at most `environment.isolation_workers`, and eight more that host one
    environment each, for episodes that were running whenever a worker was lost, twice or more."""
    draining: int = 0
    """Workers that take no more environments. Of those in which a call hangs there are at most
    `environment.isolation_workers`; while there are more of those that are used up, none is replaced."""
    environments: int = 0
    """Environments in them; at most 1000 in each."""
    waiting: int = 0
    """Episodes that wait for a place."""
    calls: int = 0
    """Calls that wait for a reply; at most one for each environment."""
    bytes_in_flight: int = 0
    """Bytes of messages that wait to be sent, or were received in part."""
    lost: int = 0
    """Workers that were lost so far."""


class WorkerPool:
    """Starts workers as needed, and spreads environments over them."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self.bottleneck = Bottleneck(
            f"a place in one of {isolation.workers} worker processes", "environment.isolation_workers allows more"
        )
        """The bottleneck for which environments wait before they are built."""
        self._workers: list[Connection] = []
        self._solo_workers: list[Connection] = []
        self._draining: list[Connection] = []
        self._ended: set[Connection] = set()
        self._suspects: dict[tuple[int, int], int] = {}
        """How many losses each environment may have caused; a hanging call counts as two."""
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {False: deque(), True: deque()}
        """Episodes that wait for a place, and episodes that wait for a worker of their own."""
        self._definitions: dict[int, tuple[Any, m.Define]] = {}
        self._environments = 0
        self._numbers = 0
        self._lost = 0
        self.closing: set[asyncio.Task[None]] = set()
        """Environments that are being closed in the background."""
        # Cancelled when the event loop ends; then all workers end too.
        self._guard = asyncio.get_running_loop().create_task(self._close_at_the_end())

    async def place(self, definition: int, seed: int) -> tuple[Connection, int]:
        """A ready worker, and a number for one more environment in it; waits while all workers are full."""
        start = (definition, seed)
        worker = await self._free_worker(start)
        self._environments += 1
        environment = self._environments
        worker.environments[environment] = start
        try:
            await asyncio.shield(worker.ready)
        except BaseException as error:
            self.release(worker, environment)
            if isinstance(error, asyncio.CancelledError) and worker.ready.cancelled():
                raise WorkerLost(await worker.wait_until_lost()) from None
            raise
        return worker, environment

    async def _free_worker(self, start: tuple[int, int]) -> Connection:
        while (worker := self._least_busy(alone=self._suspects.get(start, 0) > 1)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting[self._suspects.get(start, 0) > 1].append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():  # it was woken, so another one may take the place
                    self._wake_waiting()
                raise
        return worker

    def release(self, worker: Connection, environment: int, *, is_stuck: bool = False) -> None:
        """Free a place: the environment is closed, or it is stuck and its worker is drained."""
        start = worker.environments.pop(environment, None)
        if is_stuck and start is not None:
            self._suspect(start, 2)
        elif start is not None and worker.is_open:  # the episode is over
            self._suspects.pop(start, None)
        if is_stuck or worker.is_draining or self._isolation.environments == 1:
            worker.drain(is_stuck=is_stuck)
            self._limit_draining()
        self._wake_waiting()

    def definition(self, target: EnvironmentSpec | Any) -> m.Define:
        """The message that defines a spec or a function; the same for the same object."""
        known = self._definitions.get(id(target))
        if known is not None and known[0] is target:
            return known[1]
        self._numbers += 1
        if isinstance(target, EnvironmentSpec):
            definition = define_spec(target, self._numbers)
        else:
            definition = define_function(target, self._numbers)
        if len(self._definitions) >= _MAX_DEFINITIONS:
            del self._definitions[next(iter(self._definitions))]
        self._definitions[id(target)] = (target, definition)
        return definition

    def status(self) -> IsolationStatus:
        """The current state of the workers."""
        self._limit_draining()
        workers = [*self._workers, *self._solo_workers, *self._draining]
        return IsolationStatus(
            workers=len(self._workers) + len(self._solo_workers),
            draining=len(self._draining),
            environments=sum(len(worker.environments) for worker in workers),
            waiting=sum(not waiter.done() for queue in self._waiting.values() for waiter in queue),
            calls=sum(worker.pending for worker in workers),
            bytes_in_flight=sum(worker.bytes_in_flight for worker in workers),
            lost=self._lost,
        )

    async def stop(self) -> None:
        """End all workers and the pool."""
        self._guard.cancel()
        await asyncio.wait((self._guard,))

    def _least_busy(self, *, alone: bool) -> Connection | None:
        """The worker with the fewest environments, or a new one; None if there is no place."""
        self._limit_draining()
        workers, limit, capacity = self._workers, self._isolation.workers, self._isolation.environments
        if alone:
            workers, limit, capacity = self._solo_workers, _SOLO_WORKERS, 1
        worker = min(workers, key=lambda worker: len(worker.environments), default=None)
        # Used-up workers are never ended early, because their environments are not at fault. New ones wait instead.
        is_full = not alone and sum(not worker.is_stuck for worker in self._draining) > self._isolation.workers
        if (worker is None or worker.environments) and len(workers) < limit and not is_full:
            worker = Connection(self._isolation, self._forget)
            workers.append(worker)
        return worker if worker is not None and len(worker.environments) < capacity else None

    def _limit_draining(self) -> None:
        """Remove draining workers from use; at most `isolation_workers` of them may be stuck."""
        for workers in (self._workers, self._solo_workers):
            for worker in [worker for worker in workers if worker.is_draining]:
                workers.remove(worker)
                self._draining.append(worker)
        stuck = [worker for worker in self._draining if worker.is_stuck]
        for worker in stuck[: max(0, len(stuck) - self._isolation.workers)]:
            worker.end("was ended because calls in it hung, as in others")

    def _forget(self, worker: Connection) -> None:
        """Handle a worker that has ended, or is about to."""
        self._ended = {ended for ended in self._ended if not ended.why_lost} | {worker}
        for workers in (self._workers, self._solo_workers, self._draining):
            if worker in workers:
                workers.remove(worker)
        for start in worker.suspects:
            self._suspect(start, 1)
        self._lost += bool(worker.environments)
        room = ENVIRONMENTS if worker.is_draining else max(1, len(worker.environments))  # another may take its place
        for _ in range(room):
            self._wake_waiting()

    def _suspect(self, start: tuple[int, int], losses: int) -> None:
        self._suspects[start] = self._suspects.get(start, 0) + losses
        if len(self._suspects) > _MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def _wake_waiting(self) -> None:
        """Wake the next episode of each kind, so that it looks for a place again."""
        for queue in self._waiting.values():
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    break

    async def _close_at_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_future()
        finally:
            _pools.get(loop, {}).pop(self._isolation, None)
            workers = {*self._workers, *self._solo_workers, *self._draining, *self._ended}
            for worker in workers:
                worker.end("was closed")
            await asyncio.gather(*(worker.wait_until_ended() for worker in workers))
            self._ended.clear()


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Isolation, WorkerPool]] = WeakKeyDictionary()


def pool_for(isolation: Isolation) -> WorkerPool:
    """The pool of this event loop with these settings."""
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    if isolation not in pools:
        pools[isolation] = WorkerPool(isolation)
    return pools[isolation]


def isolation_status() -> IsolationStatus:
    """The current state of this process's workers, summed over its event loops."""
    statuses = [pool.status() for pools in list(_pools.values()) for pool in pools.values()]
    names = IsolationStatus.__slots__
    return IsolationStatus(**{name: sum(getattr(status, name) for status in statuses) for name in names})


async def close_workers() -> None:
    """End the workers of this event loop, which also end with it."""
    for pool in list(_pools.get(asyncio.get_running_loop(), {}).values()):
        await pool.stop()
