"""Run one tool call within its time limit, and return whatever it does as a value.

Two things cannot be stopped from outside, because Python offers no way to: a plain function that hangs keeps its thread
until it returns, and an async function that blocks without awaiting blocks its event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from turnsmith.concurrency.clocks import Clock, OutOfTime, add_clock
from turnsmith.concurrency.environment_threads import EnvironmentThread, EventLoopThread
from turnsmith.concurrency.generators import enter
from turnsmith.concurrency.threads import shared_threads

GRACE = 1.0
"""Seconds that a cancelled tool gets for its cleanup."""

_episode: contextvars.ContextVar[str] = contextvars.ContextVar("turnsmith_episode", default="")


def current_episode() -> str:
    """The id of the episode that the running tool was called for; empty outside of one.

    A tool object that serves several episodes can keep their states apart by it.

    Example:
        >>> current_episode()
        ''
    """
    return _episode.get()


class ToolTimeout(Exception):
    """The call exceeded its time limit."""


@dataclass(slots=True)
class CallOutcome:
    """How a call ended: with a value, or with the exception that it raised."""

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    """How long a plain function ran."""


async def run_tool(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    is_async: bool,
    limit: float,
    episode_id: str,
    thread: EnvironmentThread | EventLoopThread | None = None,
) -> CallOutcome:
    """Call the function for at most `limit` seconds, without the time that it waits in a queue.

    It runs in its `thread` if it has one. Otherwise an async function gets a task of its own, and a plain one any
    thread.

    Raises:
        asyncio.CancelledError: The caller was cancelled; an async tool has had `GRACE` seconds for its cleanup.
        Overloaded: The call did not get its turn for very long, so it was never made.
    """
    context = contextvars.copy_context()
    if episode_id:
        context.run(_episode.set, episode_id)
    if isinstance(thread, EventLoopThread):
        context.run(enter, thread.generators)
    if isinstance(thread, EnvironmentThread):
        try:
            return await thread.run(_call_in_thread, function, arguments, limit=limit, context=context)
        except OutOfTime:
            return CallOutcome(error=ToolTimeout())
    if is_async:
        return await _call_in_task(function, arguments, limit, context)
    outcome = CallOutcome()
    try:
        if thread is None:
            await shared_threads().run(_call_plain, outcome, function, arguments, limit=limit, context=context)
        else:
            context.run(_call_plain, outcome, function, arguments)
    except OutOfTime:
        return CallOutcome(error=ToolTimeout())
    if inspect.isawaitable(outcome.value):  # a plain function may wrap an async one
        return await _call_in_task(lambda: outcome.value, {}, limit - outcome.seconds, context)
    return outcome


def _call_plain(outcome: CallOutcome, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    began = time.perf_counter()
    try:
        outcome.value = function(**arguments)
    except BaseException as error:  # sys.exit() too
        outcome.error = error
    outcome.seconds = time.perf_counter() - began


def _call_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> CallOutcome | Awaitable[CallOutcome]:
    outcome = CallOutcome()
    _call_plain(outcome, function, arguments)
    return _call(lambda: outcome.value, {}) if inspect.isawaitable(outcome.value) else outcome


async def _call_in_task(
    function: Callable[..., Any], arguments: dict[str, Any], limit: float, context: contextvars.Context
) -> CallOutcome:
    clock = Clock(limit)
    context.run(add_clock, clock)  # what the tool itself waits for, such as a sandbox, stops its clock
    # A task of its own, so that a tool which cancels "the current task" or ignores its cancellation harms only itself.
    task = asyncio.get_running_loop().create_task(_call(function, arguments), context=context)
    try:
        async with clock:
            await asyncio.wait((task,))
    except OutOfTime:
        await _cancel(task)
        return CallOutcome(error=ToolTimeout())
    except asyncio.CancelledError:
        await _cancel(task)
        raise
    return CallOutcome(error=asyncio.CancelledError()) if task.cancelled() else task.result()


async def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> CallOutcome:
    try:
        return CallOutcome(await function(**arguments))
    except BaseException as error:
        # All of them: a task that ends in SystemExit or KeyboardInterrupt would end the event loop with it, and a
        # CancelledError that the tool raised itself must not look like one from outside.
        return CallOutcome(error=error)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,), timeout=GRACE)
    if not task.done():
        # It ignores its cancellation. `asyncio.run` would wait for it at its end, perhaps for ever, so it is taken off
        # the list of tasks (the documented call for those who write tasks of their own) and left to itself.
        asyncio.tasks._unregister_task(task)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
