"""Does the same seed begin the same episode, in an object that was used before and in another process?"""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from turnsmith.check.environment.scripted import plausible_reply
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.asking import NO_EPISODE
from turnsmith.env.isolation.serialization import define_spec
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.tools.step_result import read_step

_SECONDS = 20.0
"""Longest time of a new process that opens one episode."""
_STEPS, _EPISODE = 40, 2.0
"""Most actions of an episode that is repeated, and longest time in seconds."""
_ENDED = ", and the episode ends"
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
    """Play the same actions in one object twice, in another one, and open an episode in a new process of Python.

    Trainers that keep their objects would train on what the last episode left. What differs from one process to the
    next, as the order of a set of texts does, makes the episodes of a group begin otherwise.
    """
    spec = subject.environment.each()[0]
    if subject.is_agent or "://" in str(spec.target) or subject.environment.each()[1:]:
        return Finding("skipped", "It is an agent, a mix, or on another machine.")
    task = next(iter(subject.tasks), None) if subject.tasks else None
    try:
        episodes = await asyncio.to_thread(_reset_twice, spec, subject.seed + 3, task)
    except Exception as error:  # (what an environment raises)
        if NO_EPISODE in str(error):
            raise
        return Finding("warning", f"A second reset of one object raised {type(error).__name__}: {error}", _FIX)
    if episodes is None:
        return Finding("skipped", "Its `reset` is async.")
    used, again, other = episodes
    turn = next((n for n, (one, later) in enumerate(zip(used, again, strict=True)) if one != later), None)
    if turn is not None and (turn == 0 or used == other):  # else chance decides, or what objects share
        where = f"differs in turn {turn}" if turn else "begins otherwise"
        saw = f"A second episode of one object from the same seed {where}: {_difference(used[turn], again[turn])}."
        return Finding("warning", saw, _FIX)
    first = used[0]
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


def _reset_twice(spec: EnvironmentSpec, seed: int, task: dict[str, Any] | None) -> list[list[str]] | None:
    """What two episodes of one object and one of another show, with the same actions."""
    made, other = spec.build(), spec.build()
    try:
        if inspect.iscoroutinefunction(made.reset):
            return None
        opening = first_opening(made, seed, task)
        prefix = made.get_prompt_prefix() if hasattr(made, "get_prompt_prefix") else ""
        seen, actions, end = [opening], list[str](), time.monotonic() + _EPISODE
        while len(actions) < _STEPS and time.monotonic() < end:
            actions.append(plausible_reply(len(actions), f"{opening}\n{prefix}\n{seen[-1]}"))
            seen.append(_shown(made, actions[-1]))
            if seen[-1].endswith(_ENDED):
                break
        again = [[first_opening(one, seed, task), *(_shown(one, act) for act in actions)] for one in (made, other)]
        return [seen, *again]
    finally:
        for one in (made, other):
            with suppress(Exception):
                one.close()


def _shown(made: Any, action: str) -> str:
    """What a step returns, but the info; what it raises is told by the checks that play."""
    try:
        returned = made.step(action)
        read = read_step("step", asyncio.run(returned) if inspect.iscoroutine(returned) else returned)
    except Exception as error:  # (what an environment raises)
        return f"{type(error).__name__}{_ENDED}"
    return f"{read.observation} and {read.reward}{_ENDED if read.done else ''}"


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
