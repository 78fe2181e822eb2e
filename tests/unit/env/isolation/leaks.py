"""Environments that use up what their process has, or change what it has once; a row says which."""

from __future__ import annotations

import ctypes
import locale
import os
import signal
import tempfile
import threading
from typing import Any

from turnsmith import BaseEnvironment

_kept: list[Any] = []


class Leaky(BaseEnvironment):
    """Says its process; one step ends it."""

    def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        getattr(self, (task or {"leak": "nothing"})["leak"])()
        return str(os.getpid())

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 1.0, True, {}

    def nothing(self) -> None:
        """Leak nothing."""

    def files(self) -> None:
        """Leave 40 files open."""
        _kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(40))

    def threads(self) -> None:
        """Leave 60 threads."""
        for _ in range(60):
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    def memory(self) -> None:
        """Keep 30 MB."""
        _kept.append(b"x" * 30_000_000)

    def folder(self) -> None:
        """Leave the process in a folder that is gone."""
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)

    def locale(self) -> None:
        """Change how numbers are written."""
        locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(locale.LC_ALL) == "C" else "C")

    def signals(self) -> None:
        """Handle a signal otherwise, as a library does."""
        ctypes.CDLL(None).signal(signal.SIGUSR1, 1)  # ignore it

    def no_more(self) -> None:
        """Fail as if there were no more files."""
        raise OSError(24, "Too many open files")
