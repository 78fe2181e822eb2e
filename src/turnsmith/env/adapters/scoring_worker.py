"""What a scoring process does until its input ends: judge one answer after another, each within its CPU time.

A timer of the kernel ends the process when an answer has had its share: no signal handler could, while a regular
expression or C code runs. See `scoring_process`.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from turnsmith.env.adapters.json_schemas import read_strict_json, validator_of
from turnsmith.env.adapters.linear_patterns import matches

_MEMORY_BYTES = 4 * 1024**3
_PR_SET_PDEATHSIG = 1


def _regex(right: str) -> Callable[[str], str]:
    return lambda said: "1" if matches(right, said) else "0"


def _json_schema(right: str) -> Callable[[str], str]:
    validator = validator_of(right)
    return lambda said: "1" if validator.is_valid(read_strict_json(said)) else "0"


def _math(right: str) -> Callable[[str], str]:
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    def read(text: str) -> Any:
        return parse(text if "$" in text or "\\boxed" in text else f"${text}$")

    gold = read(right)
    if all(isinstance(form, str) for form in gold):  # a text is what it falls back to
        return lambda _: "unreadable"
    return lambda said: "1" if verify(gold, read(said)) else "0"


_KINDS: dict[str, Callable[[str], Callable[[str], str]]] = {"regex": _regex, "json_schema": _json_schema, "math": _math}


@lru_cache(maxsize=256)
def _judge_of(kind: str, right: str) -> Callable[[str], str]:
    return _KINDS[kind](right)


def _reply_to(kind: str, right: str, said: str, seconds: float) -> str:
    judge = _judge_of(kind, right)  # imports what it needs, which is not the answer's time
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return judge(said)
    except Exception:  # whatever a model writes that cannot be judged is a wrong answer
        return "0"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _die_with(parent: int) -> None:
    """End when the thread that started this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit()


def answer_lines() -> None:
    """Answer each line of standard input, `[kind, right, said, seconds]`, with one line."""
    _die_with(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable()  # math-verify tells of each answer that it cannot read
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a package prints
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin.buffer:
        replies.write(f"{_reply_to(*json.loads(line))}\n")
        replies.flush()


if __name__ == "__main__":
    answer_lines()
