"""An environment that does whatever goes wrong in real ones, when it is told to."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import time
from typing import Any

from turnsmith import BaseEnvironment, tool

MEBIBYTE = 2**20


class Faulty(BaseEnvironment):
    """Does what its action names; anything else is echoed."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.held: list[Any] = []

    def reset(self, seed: int = 0) -> str:
        self.do(str(self.config.get("at_reset", "")))
        return f"start {seed} in {os.getpid()}"

    def step(self, action: str) -> Any:
        odd = self.do(action)
        return (f"{action} in {os.getpid()}", 1.0, False, {"count": self.step_count}) if odd is None else odd

    def close(self) -> None:
        self.do(str(self.config.get("at_close", "")))

    @tool(time_limit=0.5)
    def act(self, what: str) -> str:
        """Do it."""
        self.do(what)
        return f"{what} done"

    def do(self, what: str) -> Any:
        """A fault; returns what `step` shall return instead of something right."""
        fault = getattr(self, f"do_{what}", None)
        return None if fault is None else fault()

    # Faults of the process.

    def do_raise(self) -> None:
        raise KeyError("sword")

    def do_exit(self) -> None:
        os._exit(3)

    def do_segfault(self) -> None:
        faulthandler.disable()  # its "Fatal Python error" would look like the reason why a run of the tests failed
        ctypes.string_at(0)

    def do_loop(self) -> None:
        while True:
            pass

    def do_hang(self) -> None:
        time.sleep(600)

    def do_block(self) -> None:
        """Hold the interpreter itself: no other thread of the process can do anything."""
        ctypes.PyDLL(None).sleep(600)

    def do_deaf(self) -> None:
        """Block and ignore every signal that can be, then hang."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            ctypes.CDLL(None).signal(number, ctypes.c_void_p(1))
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.do_block()

    def do_allocate(self) -> None:
        self.held.append(bytearray(8 * 1024 * MEBIBYTE))

    def do_leak(self) -> None:
        while True:
            self.held.append(b"x" * (32 * MEBIBYTE))
            time.sleep(0.02)

    def do_bomb(self) -> None:
        """Each process forks another two, up to 128 of them: enough for a limit, not for the machine."""
        for _ in range(7):
            os.fork()
        time.sleep(600)

    def do_fork(self) -> None:
        """Fork, and let the copy go on as if it were the worker."""
        os.fork()

    def do_daemon(self) -> None:
        """Leave a process behind that nothing ties to this one: another session, another parent, deaf."""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                time.sleep(600)
            os._exit(0)
        os.wait()

    # Faults of what is returned.

    def do_type(self) -> Any:
        return 7

    def do_nan(self) -> Any:
        return "next", float("nan"), False, {}

    def do_huge(self) -> Any:
        return "x" * (100 * MEBIBYTE), 0.0, False, {}

    def do_huge_info(self) -> Any:
        return "next", 0.0, False, {"data": "x" * (100 * MEBIBYTE)}

    def do_object(self) -> Any:
        return "next", 0.0, False, {"connection": socket.socket()}

    def do_deep(self) -> Any:
        info: dict[str, Any] = {}
        for _ in range(100_000):
            info = {"in": info}
        return "next", 0.0, False, info

    # Faults against the other side.

    def do_garbage(self) -> None:
        """Write nonsense into every socket of the process."""
        for descriptor in range(3, 64):
            try:
                socket.socket(fileno=os.dup(descriptor)).send(b"\x03\x00\x00\x00\xc1\xc1\xc1" * 9)
            except OSError:
                pass
        time.sleep(600)

    def do_flood(self) -> None:
        """Announce a message of four gigabytes."""
        for descriptor in range(3, 64):
            try:
                socket.socket(fileno=os.dup(descriptor)).send(b"\xff" * 64)
            except OSError:
                pass
        time.sleep(600)


class AsyncFaulty(BaseEnvironment):
    """Async methods that hang in the two ways they can."""

    async def reset(self) -> str:
        return "start"

    async def step(self, action: str) -> Any:
        import asyncio

        if action == "wait":
            await asyncio.sleep(600)
        if action == "block":
            time.sleep(600)
        return f"{action} in {os.getpid()}", 1.0, False, {}
