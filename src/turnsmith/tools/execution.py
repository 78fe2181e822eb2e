"""Running one call of a user's function so that whatever it does comes back as a value, within its time.

What cannot be taken back: a plain function that hangs keeps its thread until it returns, and an async one that blocks
without awaiting blocks its event loop, because Python can stop neither from outside.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from turnsmith.threads import shared_threads

GRACE = 1.0
"""Seconds that a cancelled tool gets for its clean-up."""

_PLAIN = frozenset({str, int, float, bool, list, tuple, dict, type(None)})
_episode: contextvars.ContextVar[str] = contextvars.ContextVar("turnsmith_episode", default="")


def current_episode() -> str:
    """The id of the episode that the running tool was called for; empty outside of one.

    A tool that serves several episodes keeps their states apart with it.

    Example:
        >>> current_episode()
        ''
    """
    return _episode.get()


class ToolTimeout(Exception):
    """The call took longer than it may."""


class CallOutcome:
    """How a call ended: with a value, or with whatever it raised."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


async def run_tool(
    function: Callable[..., Any], arguments: dict[str, Any], *, is_async: bool, limit: float, episode_id: str
) -> CallOutcome:
    """Call the function, in a task of its own or in a thread, for at most `limit` seconds.

    Raises nothing but cancellation from outside, for which the tool gets a moment to clean up.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    if is_async:
        return await _wait_for_task(_guard(function, arguments, episode_id), limit)
    ended = await _in_thread(function, arguments, limit, episode_id)
    # A plain function may wrap an async one. Asking takes longer than looking at the type, which nearly always tells.
    if ended.error is None and type(ended.value) not in _PLAIN and inspect.isawaitable(ended.value):
        return await _wait_for_task(_guard(_Given(ended.value), {}, episode_id), until - loop.time())
    return ended


class _Given:
    """Calling it gives an awaitable that is already there."""

    def __init__(self, awaitable: Any) -> None:
        self.awaitable = awaitable

    def __call__(self) -> Any:
        return self.awaitable


async def _guard(function: Callable[..., Any], arguments: dict[str, Any], episode_id: str) -> CallOutcome:
    if episode_id:
        _episode.set(episode_id)  # in this task's own copy of the context
    try:
        return CallOutcome(await function(**arguments))
    except BaseException as error:
        # All of them: a task that ends in SystemExit or KeyboardInterrupt would end the event loop with it, and a
        # CancelledError that the tool raised itself must not look like one from outside.
        return CallOutcome(error=error)


async def _wait_for_task(work: Any, limit: float) -> CallOutcome:
    # A task of its own, so that a tool that cancels "the current task" or ignores its cancellation harms only itself.
    loop = asyncio.get_running_loop()
    task: asyncio.Task[CallOutcome] = loop.create_task(work)
    # By hand what `asyncio.wait` does for any number of tasks, at half the cost.
    waiter: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(limit, _release, waiter)
    task.add_done_callback(lambda _: _release(waiter))
    try:
        await waiter
    except asyncio.CancelledError:
        await _stop(task)
        raise
    finally:
        timer.cancel()
    if task.done():
        return CallOutcome(error=asyncio.CancelledError()) if task.cancelled() else task.result()
    await _stop(task)
    return CallOutcome(error=ToolTimeout())


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,), timeout=GRACE)
    if not task.done():
        # It ignores its cancellation. `asyncio.run` would wait for it at its end, perhaps for ever, so it is taken off
        # the list of tasks (the documented call for those who write tasks of their own) and left to itself.
        asyncio.tasks._unregister_task(task)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]


def _call(function: Callable[..., Any], arguments: dict[str, Any], episode_id: str) -> CallOutcome:
    if episode_id:
        _episode.set(episode_id)
    try:
        return CallOutcome(function(**arguments))
    except BaseException as error:  # sys.exit() too
        return CallOutcome(error=error)


async def _in_thread(
    function: Callable[..., Any], arguments: dict[str, Any], limit: float, episode_id: str
) -> CallOutcome:
    in_context = partial(contextvars.copy_context().run, _call, function, arguments, episode_id)
    try:
        return await shared_threads().run(in_context, limit=limit)
    except TimeoutError:
        return CallOutcome(error=ToolTimeout())
