"""The user's process waiting for the task runner: shows events, notices Ctrl-C, and asks the watchdog."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from turnsmith.trainer.driver.watchdog import Watchdog

_EVENT_SECONDS = 0.25
_ANSWER_SECONDS = 1.0


def wait_for_call(reference: Any, runner: Any, watchdog: Watchdog, show: Callable[[str, Any], None]) -> Any:
    """Wait for a call to the task runner and return its result; Ctrl-C and the watchdog work even if it hangs.

    Args:
        reference: The call.
        runner: The task runner's actor.
        watchdog: Stops a run that makes no progress.
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


class Interrupt:
    """Inside this context the first Ctrl-C is only noted, and `check` raises it where stopping is safe.

    Python raises KeyboardInterrupt wherever the main thread happens to be. Inside Ray that may be a destructor, where
    the exception is printed and lost, and the run would go on. A second Ctrl-C raises at once, as usual.
    """

    def __init__(self) -> None:
        self._noted = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise the Ctrl-C that was noted."""
        if self._noted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True
