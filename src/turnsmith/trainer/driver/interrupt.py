"""Ctrl-C that is never lost and never tears a call apart."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While entered, the first Ctrl-C is only noted, and `check` raises it where stopping is safe.

    Python raises KeyboardInterrupt wherever the main thread happens to be. Inside Ray that may be a destructor, where
    the exception is printed and lost, and the run would go on. The second Ctrl-C raises at once, as usual.
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
