"""Ways to play a task that start from its solution: written otherwise, in the form that pays, or with other steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnsmith.check.audit.writings import Write, in_form, mark_of
from turnsmith.check.environment.oracle import Task, in_order
from turnsmith.check.environment.subject import Policy
from turnsmith.rollout.unskilled import normal
from turnsmith.trajectory import Trajectory

LAST_STEP = "only its last step"
LOOK_TWICE = "a look-up made twice"
RESPELLED = "the arguments of its calls in another order, and 33.0 as 33"
REWARDING = "with its commands replaced by those that write 1 into files of rewards"


def says_the_answer(task: Task, episode: Trajectory) -> bool:
    """Whether the actions are the right answer, however it is written; of several, whether all are among them."""
    right = {normal(text) for text in task.solution or ()}
    return bool(right) and right <= {normal(action) for action in episode.actions}


def answer_of_another(task: Task, step: int) -> Policy | None:
    """Say the right answer of another start."""
    return in_order([task.others[(task.number + step) % len(task.others)]]) if task.others else None


def asks_for(form: str, tasks: Sequence[Task]) -> bool:
    """Whether the prompts tell the model to write its answer in this form."""
    mark = mark_of(form)
    return bool(mark) and all(mark in task.opening for task in tasks if task.opening)


def with_form(task: Task, form: str) -> Task:
    """A task with its answers in a form."""
    solution = task.solution and tuple(in_form(form, text) for text in task.solution)
    return replace(task, solution=solution, others=tuple(in_form(form, text) for text in task.others))


def written(task: Task, write: Write, form: str) -> Policy | None:
    """Say the right answer written in another way, in its form; None where that does not apply."""
    solution = (task.solution or ("",))[0]
    changed = write(solution)
    return None if changed in ("", solution) else in_order([in_form(form, changed)])


def if_changed(task: Task, edit: Callable[[Sequence[str]], Sequence[str]]) -> Policy | None:
    """Play a changed solution of several actions; None if the change leaves it as it is."""
    changed = tuple(edit(task.solution)) if task.solution and len(task.solution) > 1 else ()
    return None if not changed or changed == task.solution else in_order(changed)


EDITS: Mapping[str, Callable[[Sequence[str]], Sequence[str]]] = {
    LAST_STEP: lambda steps: steps[-1:],
    "without its first step": lambda steps: steps[1:],
    "without its last step": lambda steps: steps[:-1],
    "its steps in reverse": lambda steps: steps[::-1],
    "its first step again and again": lambda steps: steps[:1],
    "all but its last step, and then the last of these again and again": lambda steps: steps[:-1],
}
"""What is left of a solution of several actions."""
_LOOKS = re.compile(r"\b(?:get|list|search|find|look|read|show|view|check|fetch|describe|query|count)", re.IGNORECASE)


def look_twice(steps: Sequence[str]) -> Sequence[str]:
    """The solution with its first look-up made twice, which changes nothing."""
    place = next((place for place, step in enumerate(steps) if _LOOKS.search(step.replace("_", " "))), None)
    return steps if place is None else [*steps[: place + 1], *steps[place:]]


def respelled(steps: Sequence[str]) -> Sequence[str]:
    """The solution with the same calls in other JSON.

    Example:
        >>> respelled(['<tool_call>{"name": "pay", "arguments": {"to": 7, "amount": 33.0}}</tool_call>', "{done}"])
        ('<tool_call>{"arguments": {"amount": 33, "to": 7}, "name": "pay"}</tool_call>', '{done}')
    """
    return tuple(re.sub(r"\{.*\}", _respelled, step, flags=re.DOTALL) for step in steps)


def _respelled(found: re.Match[str]) -> str:
    def shorter(number: str) -> float:
        return int(float(number)) if float(number).is_integer() else float(number)

    try:
        return json.dumps(json.loads(found[0], object_pairs_hook=_reversed, parse_float=shorter))
    except (ValueError, OverflowError):
        return found[0]


def _reversed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pairs[::-1])


HONEST_EDITS: Mapping[str, Callable[[Sequence[str]], Sequence[str]]] = {LOOK_TWICE: look_twice, RESPELLED: respelled}
"""Changes that leave a solution right."""
