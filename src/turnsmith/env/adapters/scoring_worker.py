"""The program of a scoring process: it judges one answer after another, each in a child process.

It imports modules and prepares right answers once; a child inherits them and costs a millisecond. A timer of the kernel
ends the child when its CPU time is used up; a signal handler could not, while a regular expression or C code runs. See
`scoring_process`.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

from turnsmith.env.adapters.json_schemas import read_strict_json, validator_of
from turnsmith.env.adapters.linear_patterns import in_linear_time, matches

_MEMORY_BYTES = 4 * 1024**3
_PR_SET_PDEATHSIG = 1
_NICE = 5
"""Lower priority, so that slow answers leave the cores to the process that plays episodes."""


def _regex(right: str) -> Callable[[str], str]:
    re.compile(right, re.DOTALL)
    in_linear_time(right)  # both are cached
    return lambda said: "1" if matches(right, said) else "0"


def _json_schema(right: str) -> Callable[[str], str]:
    validator = validator_of(right)
    return lambda said: "1" if validator.is_valid(read_strict_json(said)) else "0"


def _math(right: str) -> Callable[[str], str]:
    from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

    def read(text: str) -> Any:
        return parse(text if "$" in text or "\\boxed" in text else f"${text}$")

    gold = read(right)
    if all(isinstance(form, str) for form in gold):  # math-verify falls back to text
        return lambda _: "unreadable"
    return lambda said: "1" if verify(gold, read(said)) else "0"


_KINDS: dict[str, Callable[[str], Callable[[str], str]]] = {"regex": _regex, "json_schema": _json_schema, "math": _math}


@lru_cache(maxsize=256)
def _judge_of(kind: str, right: str) -> Callable[[str], str]:
    return _KINDS[kind](right)


def _reply_to(kind: str, right: str, said: str, seconds: float) -> str:
    """`1`, `0`, `unreadable`, or `lost` if it took too much time or memory."""
    judge = _judge_of(kind, right)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        _judge_and_end(judge, said, seconds, write_end)
    os.close(write_end)
    reply = os.read(read_end, 64).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    return reply or "lost"


def _judge_and_end(judge: Callable[[str], str], said: str, seconds: float, write_end: int) -> NoReturn:
    """Judge one answer in the child."""
    _die_with(_parent)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        reply = judge(said)
    except Exception:  # an answer that cannot be judged is wrong
        reply = "0"
    os.write(write_end, reply.encode())
    os._exit(0)


_parent = os.getpid()
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with(parent: int) -> None:
    """End when the thread that started this process ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def answer_lines() -> None:
    """Answer each line of standard input, `[kind, right, said, seconds]`, with one line."""
    _die_with(int(sys.argv[1]))
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    logging.disable()  # math-verify logs each answer that it cannot read
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for packages that print
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin.buffer:
        replies.write(f"{_reply_to(*json.loads(line))}\n")
        replies.flush()


if __name__ == "__main__":
    answer_lines()
