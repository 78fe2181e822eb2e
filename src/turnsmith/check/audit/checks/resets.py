"""Does the same seed begin the same episode, in an object that was used before and in another process?"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from typing import Any

from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.asking import NO_EPISODE
from turnsmith.env.isolation.serialization import define_spec
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError

_SECONDS = 20.0
"""Longest time of a new process that opens one episode."""
_FIX = "Let `reset` set everything anew, generators of random numbers too; or make a new object each time."
_ELSEWHERE = """
import pickle, sys
definition, seed, task = pickle.load(sys.stdin.buffer)
from turnsmith.check.audit.checks.resets import first_opening
from turnsmith.env.isolation.serialization import unpack_spec
sys.stdout.write(chr(0) + first_opening(unpack_spec(definition).build(), seed, task))
"""


@environment_check("reset-again", "an object can be reset again", audit=True)
async def check_reset_again(subject: Subject) -> Finding:
    """Reset one object twice from the same seed, with an action in between, and one in a new process of Python.

    Trainers that keep their objects would train on what the last episode left. What differs from one process to the
    next, as the order of a set of texts does, makes the episodes of a group begin otherwise.
    """
    spec = subject.environment.each()[0]
    if subject.is_agent or "://" in str(spec.target) or subject.environment.each()[1:]:
        return Finding("skipped", "It is an agent, a mix, or on another machine.")
    task = next(iter(subject.tasks), None) if subject.tasks else None
    try:
        openings = await asyncio.to_thread(_reset_twice, spec, subject.seed + 3, task)
    except Exception as error:  # (what an environment raises)
        if NO_EPISODE in str(error):
            raise
        return Finding("warning", f"A second reset of one object raised {type(error).__name__}: {error}", _FIX)
    if openings is None:
        return Finding("skipped", "Its `reset` is async.")
    first, second = openings
    if first != second:
        saw = f"A second reset of one object from the same seed begins otherwise: {_difference(first, second)}."
        return Finding("warning", saw, _FIX)
    elsewhere = await asyncio.to_thread(_open_elsewhere, spec, subject.seed + 3, task)
    if elsewhere is None:
        saw = "A second reset of one object begins in the same way; in a new process it cannot be made."
        return Finding("passed", saw)
    if elsewhere != first:
        saw = f"The same seed begins otherwise in another process: {_difference(first, elsewhere)}."
        return Finding("failed", saw, "Sort sets before anything is drawn from them, and use no `hash` of a text.")
    return Finding("passed", "Resets from the same seed begin in the same way, in one object and in a new process.")


def first_opening(made: Any, seed: int, task: dict[str, Any] | None) -> str:
    """What `reset` returns."""
    given = {"seed": seed, "task": copy.deepcopy(task)}
    taken = inspect.signature(made.reset).parameters
    return str(made.reset(**{name: value for name, value in given.items() if name in taken}))


def _reset_twice(spec: EnvironmentSpec, seed: int, task: dict[str, Any] | None) -> tuple[str, str] | None:
    made = spec.build()
    try:
        if inspect.iscoroutinefunction(made.reset):
            return None
        first = first_opening(made, seed, task)
        with suppress(Exception):  # told by the checks that play
            returned = made.step("qwzx")
            if inspect.iscoroutine(returned):
                asyncio.run(returned)
        return first, first_opening(made, seed, task)
    finally:
        with suppress(Exception):
            made.close()


def _open_elsewhere(spec: EnvironmentSpec, seed: int, task: dict[str, Any] | None) -> str | None:
    """The opening in a new process with other hashes of texts; None if it cannot be made there."""
    try:
        given = pickle.dumps((define_spec(spec, 0), seed, task))
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE],
            input=given,
            capture_output=True,
            env=os.environ | {"PYTHONHASHSEED": "7"},
            timeout=_SECONDS,
            check=True,
        )
    except (ConfigError, OSError, subprocess.SubprocessError, TypeError, ValueError, pickle.PicklingError):
        return None
    return done.stdout.decode().rpartition(chr(0))[2]


def _difference(first: str, second: str) -> str:
    place = next((n for n, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), 0)
    return f"{first[place : place + 60]!r}, then {second[place : place + 60]!r}"
