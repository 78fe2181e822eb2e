"""What starts without an answer pay."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from turnsmith.check.audit.search import EPSILON, Search, search
from turnsmith.check.audit.solutions import says_the_answer
from turnsmith.check.environment.oracle import Task, find_tasks, in_order
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.adapters.question_answer import ANSWERS, QuestionAnswer, column_of
from turnsmith.trajectory import Trajectory

_MISSING = ("", "None", None)
_SAID = ("qwzx vbnm", "", "None", "\\boxed{}", "<answer></answer>", "{}", "[]", "\\emptyset", "\\boxed{\\emptyset}")
"""Nonsense first: where it is paid, everything is."""
_MOST = 64
"""Starts that are looked at."""


@environment_check("answer-missing", "starts without an answer pay nothing", audit=True)
async def check_missing_answers(subject: Subject) -> Finding:
    """Look for starts without a solution among others, take the answer out of a row, and give silence and nonsense.

    Where an answer could not be read from the data, nothing is compared with nothing, and everybody is right.
    """
    found = await search(subject)
    if found.solved is None:
        return Finding("skipped", "There are no answers.")
    if found.unscored:
        saw = f"{len(found.unscored)} of {len(found.tasks) + len(found.unscored)} starts are not scored: the reward is "
        saw += f"None, for {found.unscored[0].actions[0][:70]!r} too, which is their answer. All else leaves them out."
        return Finding("warning", saw, "Leave such rows out, or let the scorer read their answers.", found.unscored)
    tasks = await find_tasks(subject, min(_MOST, len(subject.tasks)) if subject.tasks else _MOST // 2)
    empty = [task for task in tasks if not task.solution or task.solution[0].strip() in _MISSING]
    for task in empty[:3]:
        if (paid := await _paid(found, task, _SAID)) is not None:
            saw = f"{len(empty)} of {len(tasks)} starts have no answer. There {paid.actions[0]!r} gets "
            saw += f"{paid.total_reward:g}."
            meant = task.solution is not None and says_the_answer(task, paid)  # silence may be the right answer
            status = "warning" if meant else "failed"
            return Finding(status, saw, "Leave such rows out, or score them 0.", [paid])
    made = subject.environment.each()[0].build()
    row = found.tasks[0].start.task or {}
    column = _column(made, row) if isinstance(made, QuestionAnswer) else ""
    for value in _MISSING if column else ():
        task = replace(found.tasks[0], start=replace(found.tasks[0].start, task=_with(row, column, value)))
        if (paid := await _paid(found, task, _SAID[:1])) is not None:
            saw = f"If the answer in {column!r} is {value!r}, nonsense such as {paid.actions[0]!r} gets "
            saw += f"{paid.total_reward:g}."
            return Finding("warning", saw, "Refuse rows without an answer, or score them 0.", [paid])
    if empty:
        saw = f"{len(empty)} of {len(tasks)} starts have no answer, and nothing is paid there."
        return Finding("warning", saw, "Leave such rows out: their groups have no gradient.")
    return Finding("passed", f"All of {len(tasks)} starts have an answer.")


def _column(made: QuestionAnswer, row: dict[str, Any]) -> str:
    names = (made.answer_column,) if made.answer_column else ANSWERS
    return next((name for name in names if column_of(row, name, _ABSENT) is not _ABSENT), "")


_ABSENT: Any = object()


def _with(row: dict[str, Any], column: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(row)
    *outer, last = column.split(".")
    place = changed
    for name in outer:
        place = place[name]
    place[last] = value
    return changed


async def _paid(found: Search, task: Task, texts: tuple[str, ...]) -> Trajectory | None:
    """The first of these texts that is paid from a start; none if it cannot be played."""
    for text in texts:
        [episode] = await found.subject.play(in_order([text]), [task.start])
        if episode.is_counted and episode.total_reward > found.bottom + EPSILON:
            return episode
    return None
