"""Compares mathematical answers by their value, with math-verify: `1/2`, `\\frac{1}{2}` and `0.5` are the same.

It works in a process of its own. What a model writes can keep a computer algebra system busy for ever or fill the
memory, and a thread could not be stopped.
"""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any

from turnsmith.errors import EnvironmentFailure, MissingDependency
from turnsmith.importing import install_line

_START_SECONDS = 60.0
_ANSWER_SECONDS = 20.0
_MEMORY_BYTES = 4 * 1024**3
_MOST_CHARACTERS = 2000


def is_equal(right: str, said: str) -> bool:
    """Whether two mathematical expressions have the same value. What is too long or too hard to compare is not equal.

    Raises:
        MissingDependency: math-verify is not installed.
        EnvironmentFailure: The right one cannot be read.
    """
    if find_spec("math_verify") is None:
        raise MissingDependency(f"The reward `math` needs math-verify: {install_line('math')}.")
    found = _comparison.compare(right, said) if len(said) <= _MOST_CHARACTERS else ""
    if found == "unreadable":
        raise EnvironmentFailure(f"The answer {right[:80]!r} is not mathematics that math-verify can read.")
    return found == "equal"


class _Comparison:
    """The process that compares, started when it is needed and again after it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def compare(self, right: str, said: str) -> str:
        """`equal`, `different`, `unreadable` or, if it did not answer, nothing."""
        with self._lock:
            return self._ask(right, said)

    def _ask(self, right: str, said: str) -> str:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([right, said]) + "\n")
            process.stdin.flush()
            is_there = select.select([process.stdout], [], [], _ANSWER_SECONDS)[0]
            line = process.stdout.readline() if is_there else ""
        except OSError:
            line = ""
        if not line:  # too slow, or out of memory
            process.kill()
            process.wait()
        return line.strip()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", __name__]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        is_there = select.select([process.stdout], [], [], _START_SECONDS)[0]
        if not is_there or process.stdout.readline() != "ready\n":
            process.kill()
            raise EnvironmentFailure("The process that compares mathematical answers did not start.")
        return process


_comparison = _Comparison()


def _compare() -> None:
    """What the process does until its input ends."""
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    def read(text: str) -> Any:
        return parse(text if "$" in text or "\\boxed" in text else f"${text}$")

    def reply(word: str) -> None:
        sys.stdout.write(f"{word}\n")
        sys.stdout.flush()

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    reply("ready")
    for line in sys.stdin:
        right, said = json.loads(line)
        gold = read(right)
        is_readable = any(not isinstance(form, str) for form in gold)  # a text is what it falls back to
        reply(("equal" if verify(gold, read(said)) else "different") if is_readable else "unreadable")


if __name__ == "__main__":
    _compare()
