"""Processes for scoring that may take too long, and that can be killed: regular expressions, JSON schemas, mathematics.

A regular expression holds Python's lock until it has matched, and a computer algebra system may never return. In a
thread of this process, either would stop all its episodes. An answer that takes too much time or memory is worth 0.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
from contextlib import suppress

from turnsmith.concurrency.clocks import Bottleneck
from turnsmith.concurrency.threads import ThreadPool, cores
from turnsmith.env.adapters.linear_patterns import lacks_re2
from turnsmith.errors import EnvironmentFailure
from turnsmith.importing import install_line

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0
"""CPU time for one answer against a regular expression or a JSON schema."""
MATH_SECONDS = 5.0
_START_SECONDS = 60.0
_REPLY_SECONDS = 60.0
"""The limit for a process that does not run at all; others reach their limit on CPU time long before."""
PROCESSES = min(8, max(2, cores()))
_BOTTLENECK = Bottleneck(f"one of {PROCESSES} processes that score answers", "use more processes (ray.num_actors)")


async def judge_elsewhere(kind: str, right: str, said: str) -> str:
    """`1`, `0`, `lost` if that took too much time or memory, or `unreadable` if the right answer cannot be read.

    Args:
        kind: `regex`, `json_schema` or `math`.
        right: What the answer is compared with.
        said: The model's final answer.
    """
    seconds = MATH_SECONDS if kind == "math" else ANSWER_SECONDS
    return await _shared_threads().run(_judge_here, kind, right, said, seconds)


def _judge_here(kind: str, right: str, said: str, seconds: float) -> str:
    """Judge in this thread's own process, which dies with the thread."""
    process: _ScoringProcess | None = getattr(_of_thread, "process", None)
    if process is None or not process.is_alive:
        process = _of_thread.process = _ScoringProcess()
    reply = process.ask(kind, right, said, seconds) or "lost"
    if reply == "lost":
        tell_once(
            f"{kind} {right}",
            "An answer took too long, or too much memory, to score with %s %r, and was worth 0. That will happen again "
            "to similar answers: %s.",
            {"regex": "the regular expression", "json_schema": "the JSON schema"}.get(kind, "math-verify against"),
            right[:200],
            remedy(kind, right),
        )
    return reply


def remedy(kind: str, right: str) -> str:
    """How to make answers cheaper to judge."""
    if kind == "regex" and lacks_re2(right):
        return f"with google-re2 this one takes linear time ({install_line('re2')})"
    return "a simpler one would not"


class _ScoringProcess:
    """One process, which dies with the thread that made it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "turnsmith.env.adapters.scoring_worker", str(os.getpid())]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._read(_START_SECONDS) != "ready":
            raise EnvironmentFailure("The process that scores answers did not start.")

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, *question: str | float) -> str:
        """The process's reply; empty if it died."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(question).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError:
            return self._end()
        return self._read(_REPLY_SECONDS)

    def _read(self, seconds: float) -> str:
        assert self._popen.stdout is not None
        is_ready = select.select([self._popen.stdout], [], [], seconds)[0]
        line = self._popen.stdout.readline() if is_ready else b""
        return line.decode().strip() if line else self._end()

    def _end(self) -> str:
        self._popen.kill()
        logger.warning("A process that scores answers ended with code %s.", self._popen.wait())
        for pipe in (self._popen.stdin, self._popen.stdout):
            with suppress(OSError):  # it had not read everything
                pipe.close() if pipe else None
        return ""


_told: set[str] = set()


def tell_once(about: str, sentence: str, *words: object) -> None:
    """Warn of something once in this process."""
    if about not in _told:
        _told.add(about)
        logger.warning(sentence, *words)


_of_thread = threading.local()
_threads: ThreadPool | None = None


def _shared_threads() -> ThreadPool:
    global _threads
    if _threads is None:
        _threads = ThreadPool(PROCESSES, _BOTTLENECK)
    return _threads


def _forget_threads() -> None:
    global _threads, _of_thread
    _threads, _of_thread = None, threading.local()


os.register_at_fork(after_in_child=_forget_threads)  # threads do not survive a fork
