"""The workers of one event loop: where the next environment goes, how many there may be, and their end.

An environment that brings its worker down is tried again, by the run's failure policy, and may do it again. So when a
worker is lost, the starts of those environments that were doing something at that moment are remembered, and the next
episodes from these starts get a worker each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.connection import Connection, Start
from turnsmith.env.isolation.serialization import define_function, define_spec
from turnsmith.env.isolation.settings import ENVIRONMENTS, Isolation
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import WorkerLost

_REMEMBERED = 64
"""Most classes and functions whose packed form is kept."""
_SUSPECTS = 256
"""Most starts that are kept apart."""
_APART = 8
"""Most workers for them, with one environment each while there are enough."""


@dataclass(frozen=True, slots=True)
class IsolationStatus:
    """What the workers of this process do right now.

    Example:
        >>> isolation_status()
        IsolationStatus(workers=0, draining=0, environments=0, waiting=0, calls=0, bytes_in_flight=0, lost=0)
    """

    workers: int = 0
    """Worker processes that take environments; at most `environment.isolation_workers`, and eight for episodes from
    starts that have brought a worker down before."""
    draining: int = 0
    """Workers that take no more, because a call in them hangs; at most as many."""
    environments: int = 0
    """Environments that they host; at most 1000 each."""
    waiting: int = 0
    """Episodes that wait for a place."""
    calls: int = 0
    """Calls that wait for an answer; at most one for each environment."""
    bytes_in_flight: int = 0
    """Bytes of messages that wait to be sent, or have come in part."""
    lost: int = 0
    """Workers that ended before they should have, so far."""


class WorkerPool:
    """Starts workers when they are needed and spreads environments over them."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._links: list[Connection] = []
        self._apart: list[Connection] = []
        self._suspects: dict[Start, None] = {}
        self._draining: list[Connection] = []
        self._ended: set[Connection] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._defined: dict[int, tuple[Any, m.Define]] = {}
        self._environments = 0
        self._numbers = 0
        self._lost = 0
        # Cancelled when the event loop ends, by whoever runs it: then all workers end, too.
        self.closing: set[asyncio.Task[None]] = set()
        """Environments that are being closed with nobody waiting for it."""
        self._guard = asyncio.get_running_loop().create_task(self._until_the_end())

    async def place(self, start: Start) -> tuple[Connection, int]:
        """A worker that is ready and a number for one more environment in it; waits while all workers are full."""
        while (link := self._roomiest(is_suspect=start in self._suspects)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if not waiter.done():
                    self._waiting.remove(waiter)
        self._environments += 1
        environment = self._environments
        link.environments[environment] = start
        try:
            await asyncio.shield(link.ready)
        except BaseException as error:
            self.release(link, environment)
            if isinstance(error, asyncio.CancelledError) and link.ready.cancelled():
                raise WorkerLost(await link.fate()) from None
            raise
        return link, environment

    def release(self, link: Connection, environment: int, *, is_stuck: bool = False) -> None:
        """The environment is closed; or it is stuck, and then its worker gets no more and ends after the others."""
        start = link.environments.pop(environment, None)
        if is_stuck and start is not None:
            self._suspect(start)
        if is_stuck or link.is_draining:
            link.drain()
            self._sort_out()
        elif link in self._apart and not link.environments:
            link.end("was not needed any more")
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def definition(self, found: Any) -> m.Define:
        """What to tell a worker about a spec or a function; the same for the same object."""
        known = self._defined.get(id(found))
        if known is not None and known[0] is found:
            return known[1]
        self._numbers += 1
        if isinstance(found, EnvironmentSpec):
            definition = define_spec(found, self._numbers, plain=self._isolation.mode == "tcp")
        else:
            definition = define_function(found, self._numbers)
        if len(self._defined) >= _REMEMBERED:
            del self._defined[next(iter(self._defined))]
        self._defined[id(found)] = (found, definition)
        return definition

    def status(self) -> IsolationStatus:
        """What they do right now."""
        self._sort_out()
        links = [*self._links, *self._apart, *self._draining]
        return IsolationStatus(
            workers=len(self._links) + len(self._apart),
            draining=len(self._draining),
            environments=sum(len(link.environments) for link in links),
            waiting=len(self._waiting),
            calls=sum(link.pending for link in links),
            bytes_in_flight=sum(link.bytes_in_flight for link in links),
            lost=self._lost,
        )

    async def stop(self) -> None:
        """End all workers and the pool."""
        self._guard.cancel()
        await asyncio.wait((self._guard,))

    async def _close(self) -> None:
        """End all workers and wait until nothing of them is left."""
        links = {*self._links, *self._apart, *self._draining, *self._ended}
        for link in links:
            link.end("was closed")
        await asyncio.gather(*(link.gone() for link in links))
        self._ended.clear()

    def _roomiest(self, *, is_suspect: bool) -> Connection | None:
        """The worker with the fewest environments, or a new one; None if there is no room at all."""
        self._sort_out()
        links, most = (self._apart, _APART) if is_suspect else (self._links, self._isolation.workers)
        found = min(links, key=lambda link: len(link.environments), default=None)
        if (found is None or found.environments) and len(links) < most:
            found = Connection(self._isolation, self._forget)
            links.append(found)
        return found if found is not None and len(found.environments) < ENVIRONMENTS else None

    def _sort_out(self) -> None:
        """Take no more environments where a call hangs; of such workers there are at most as many as of the others."""
        for links in (self._links, self._apart):
            for link in [link for link in links if link.is_draining]:
                links.remove(link)
                self._draining.append(link)
        while len(self._draining) > self._isolation.workers:
            self._draining[0].end("was ended because calls in it hung, as in others")

    def _forget(self, link: Connection) -> None:
        """A worker has ended, or is about to."""
        self._ended = {one for one in self._ended if not one.why_lost} | {link}
        for links in (self._links, self._apart, self._draining):
            if link in links:
                links.remove(link)
        for start in link.suspects:
            self._suspect(start)
        self._lost += bool(link.environments)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def _suspect(self, start: Start) -> None:
        self._suspects[start] = None
        if len(self._suspects) > _SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    async def _until_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_future()
        finally:
            _pools.get(loop, {}).pop(self._isolation, None)
            await self._close()


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Isolation, WorkerPool]] = WeakKeyDictionary()


def pool_for(isolation: Isolation) -> WorkerPool:
    """The pool of this event loop with these settings."""
    pools = _pools.setdefault(asyncio.get_running_loop(), {})
    if isolation not in pools:
        pools[isolation] = WorkerPool(isolation)
    return pools[isolation]


def isolation_status() -> IsolationStatus:
    """What the workers of all event loops of this process do right now, added up."""
    found = [pool.status() for pools in list(_pools.values()) for pool in pools.values()]
    fields = IsolationStatus.__slots__
    return IsolationStatus(**{name: sum(getattr(one, name) for one in found) for name in fields})


async def close_workers() -> None:
    """End the workers of this event loop; they also end with it."""
    for pool in list(_pools.get(asyncio.get_running_loop(), {}).values()):
        await pool.stop()
