"""Ctrl-C and preemption: signals that ask the user's process to stop the run, raised where stopping is safe.

Schedulers announce that a machine will be taken away with SIGTERM (Kubernetes, spot machines, `scancel`) or, under
Slurm, with the signal of `--signal`, by custom SIGUSR1.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from turnsmith.errors import Preempted

_PREEMPTING = (signal.SIGTERM, signal.SIGUSR1)


class Interrupt:
    """Inside this context a signal to stop is only noted, and `check` raises it where stopping is safe.

    Python raises KeyboardInterrupt wherever the main thread happens to be. Inside Ray that may be a destructor, where
    the exception is printed and lost, and the run would go on. A second Ctrl-C raises at once, as usual.

    Args:
        preempted: Whether the run is stopping already because of a preemption: further ones then change nothing.
    """

    def __init__(self, *, preempted: bool = False) -> None:
        self._noted: int | None = None
        self._preempted = preempted
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = _set_handlers(self._note, signal.SIGINT, *_PREEMPTING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt for the Ctrl-C that was noted, or Preempted for another signal."""
        if self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if self._noted is not None:
            raise _preempted_by(self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGINT or not self._preempted:
            self._noted = number


@contextmanager
def preemptible() -> Iterator[None]:
    """Raise Preempted in this block, or the function it decorates, when the process is asked to stop.

    Example:
        >>> with preemptible():
        ...     signal.raise_signal(signal.SIGUSR1)
        Traceback (most recent call last):
        turnsmith.errors.Preempted: Preempted by SIGUSR1.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_preemption()
        raise _preempted_by(number)

    before = _set_handlers(stop, *_PREEMPTING)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_preemption() -> None:
    """Ignore further signals of schedulers: the run is ending, and its processes must be stopped in order."""
    _set_handlers(signal.SIG_IGN, *_PREEMPTING)


@contextmanager
def starting_ray() -> Iterator[None]:
    """Start Ray in this block: its processes will not take SIGUSR1, and SIGTERM keeps the handler that it has.

    Slurm can send a signal to every process of a job, and SIGUSR1 ends those that do not know it. Blocked, it stays
    blocked in whatever they start; ignoring it here for a while could lose it.
    """
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        if callable(handler):  # `ray.init` sets one of its own
            _set_handlers(handler, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _preempted_by(number: int) -> Preempted:
    return Preempted(f"Preempted by {signal.Signals(number).name}.")


def _set_handlers(handler: Any, *numbers: int) -> dict[int, Any]:
    """Set a handler and return those before; only the main thread may, in others nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in numbers}
