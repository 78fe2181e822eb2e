"""Environments that fail when there are many of them, or leave something behind."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any, ClassVar


class FewSessions:
    """Its simulator has four sessions."""

    open_sessions = 0
    lock = threading.Lock()

    def reset(self, seed: int = 0) -> str:
        with FewSessions.lock:
            if FewSessions.open_sessions >= 4:
                raise ConnectionError("no session is free")
            FewSessions.open_sessions += 1
            self.is_open = True
        threading.Event().wait(0.02)
        return "Go."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}

    def close(self) -> None:
        with FewSessions.lock:
            FewSessions.open_sessions -= getattr(self, "is_open", False)


class OpenFiles:
    """Opens a file in every episode and never closes it."""

    def reset(self, seed: int = 0) -> str:
        os.open(os.devnull, os.O_RDONLY)
        return "Go."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class Threads:
    """Starts a thread in every episode, which waits for an end that nobody tells it."""

    stop = threading.Event()

    def reset(self, seed: int = 0) -> str:
        threading.Thread(target=self.stop.wait, args=(20.0,), daemon=True).start()
        return "Go."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class Processes:
    """Starts a process in every episode and does not end it."""

    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def reset(self, seed: int = 0) -> str:
        self.started.append(subprocess.Popen(["sleep", "5"]))
        return "Go."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}
