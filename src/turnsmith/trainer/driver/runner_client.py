"""Waits for a call to the task runner, and shows what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnsmith.trainer.driver.interrupt import Interrupt
from turnsmith.trainer.driver.watchdog import Watchdog

_EVENT_SECONDS = 0.25
_ANSWER_SECONDS = 1.0


def wait_for_call(reference: Any, runner: Any, watchdog: Watchdog, show: Callable[[str, Any], None]) -> Any:
    """The result of a call to `runner`; Ctrl-C and the watchdog are heard also while it does not answer.

    Args:
        reference: The call.
        runner: The task runner's actor.
        watchdog: Stops a run that stands still.
        show: Called with the kind and the content of each event.
    """
    import ray

    watchdog.move()
    with Interrupt() as interrupt:
        while True:
            done, _ = ray.wait([reference], timeout=0)
            events = runner.next_events.remote(0.0 if done else _EVENT_SECONDS)
            while not ray.wait([events], timeout=_ANSWER_SECONDS)[0]:
                interrupt.check()
                watchdog.look()
            told: Any = ray.get(events)
            for kind, content in told:
                watchdog.move(content if kind == "phase" else None)
                show(kind, content)
            if done:
                return ray.get(reference)
            interrupt.check()
            watchdog.look()
