"""What shows a finding: the shortest answer, what it earns and should, the line that decides, and a test to keep it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from turnsmith.check.audit.search import EPSILON, Search
from turnsmith.check.audit.tracing import deciding_line, trace
from turnsmith.check.environment.oracle import Task, in_order
from turnsmith.check.environment.subject import Subject
from turnsmith.check.finding import Shown
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TurnsmithError

_SHRINKS = 120


async def evidence(found: Search, task: Task, actions: Sequence[str], other: Sequence[str], *, less: bool) -> Shown:
    """The evidence of a finding: `actions` earn what they should not.

    Args:
        found: The search.
        task: The start from which they are played.
        actions: What shows the finding.
        other: What earns something else, and decides otherwise in the scorer's code.
        less: Whether `actions` should earn less than they do, as what is paid without being deserved; else more.
    """
    [episode] = await found.subject.play(in_order(actions), [task.start])
    earned, right = episode.total_reward, found.top
    line = ""
    with suppress(TurnsmithError, OSError, ValueError):
        line = deciding_line(*[await trace(found.subject, task, one) for one in (actions, other)])
    test = pasted_test(found.subject.environment.each()[0], task, actions, earned, less=less)
    return Shown(tuple(actions), task.start.seed, earned, right, line, test)


async def shortest(subject: Subject, task: Task, actions: Sequence[str], least: float) -> tuple[str, ...]:
    """The shortest texts, made by leaving out parts of these, that get at least this reward."""
    kept, tries = tuple(actions), 0

    async def pays(candidate: Sequence[str]) -> bool:
        nonlocal tries
        tries += 1
        played = await subject.play(in_order(candidate), [task.start])
        return played[0].is_counted and played[0].total_reward >= least - EPSILON

    for place, text in enumerate(kept):
        size = max(1, len(text) // 2)
        while size and tries < _SHRINKS:
            start = 0
            while start < len(kept[place]) and tries < _SHRINKS:
                shorter = kept[place][:start] + kept[place][start + size :]
                candidate = (*kept[:place], shorter, *kept[place + 1 :])
                if await pays(candidate):
                    kept = candidate
                else:
                    start += size
            size //= 2
    return kept


def pasted_test(spec: EnvironmentSpec, task: Task, actions: Sequence[str], earned: float, *, less: bool) -> str:
    """A test for the user's own suite that fails as long as these actions earn what they do."""
    sign = "<" if less else ">"
    made = spec.build()
    lines = _call_of_scorer(made, task, actions)
    if not lines:
        settings = spec.config.own_settings() if spec.config is not None else {}
        given = f"{_name(spec)!r}, {list(actions)!r}, seed={task.start.seed}"
        given += f", task={task.start.task!r}" if task.start.task else ""
        given += f", settings={settings!r}" if settings else ""
        lines = ["from turnsmith import reward_of", f"reward = reward_of({given})"]
    lines.append(f"assert round(reward, 6) {sign} {round(earned, 6)!r}")
    return "\n".join(["def test_reward():", *(f"    {line}" for line in lines)])


def _name(spec: EnvironmentSpec) -> str:
    if isinstance(spec.target, str):
        return spec.target
    return f"{spec.target.__module__}:{getattr(spec.target, '__qualname__', type(spec.target).__name__)}"


def _call_of_scorer(made: Any, task: Task, actions: Sequence[str]) -> list[str]:
    """A direct call of the user's scoring function; empty if the reward is not that of one function of theirs."""
    if not isinstance(made, QuestionAnswer) or len(actions) != 1 or task.start.task is None:
        return []
    made.reset(task=task.start.task)
    [scorer, *others] = made.scoring
    function = inspect.unwrap(scorer.function)
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if others or not name.isidentifier() or module.startswith("turnsmith"):
        return []
    scored = replace(made.scored, response=actions[0])
    returned = scorer.call([scored], {})
    part = "[0]" if isinstance(returned, (list, tuple)) else '["score"]' if isinstance(returned, dict) else ""
    given = ", ".join(f"{name}={value!r}" for name, value in scorer.arguments([scored]).items())
    return [f"from {module} import {name}", f"reward = {name}({given}){part}"]
