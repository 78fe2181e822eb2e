"""What shows a finding: the shortest answer, what it earns and should, the line that decides, and a test to keep it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from turnsmith.check.audit.search import Search
from turnsmith.check.audit.tracing import deciding_line, trace
from turnsmith.check.environment.oracle import Task
from turnsmith.check.finding import Shown
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TurnsmithError


async def evidence(found: Search, task: Task, actions: Sequence[str], other: Sequence[str], *, less: bool) -> Shown:
    """The evidence of a finding: `actions` earn what they should not.

    Args:
        found: The search.
        task: The start from which they are played.
        actions: What shows the finding.
        other: What earns something else, and decides otherwise in the scorer's code.
        less: Whether `actions` should earn less than they do, as what is paid without being deserved; else more.
    """
    [episode] = await found.subject.play(lambda turn, prompt: actions[min(turn, len(actions) - 1)], [task.start])
    earned, right = episode.total_reward, found.top
    line = ""
    with suppress(TurnsmithError, OSError, ValueError):
        line = deciding_line(*[await trace(found.subject, task, one) for one in (actions, other)])
    test = pasted_test(found.subject.environment.each()[0], task, actions, earned, less=less)
    return Shown(tuple(actions), task.start.seed, earned, right, line, test)


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
