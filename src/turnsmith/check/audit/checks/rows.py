"""What rows without an answer pay."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from turnsmith.check.audit.search import EPSILON, Search, search
from turnsmith.check.environment.oracle import Task, in_order
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.adapters.question_answer import ANSWERS, QuestionAnswer, column_of
from turnsmith.trajectory import Trajectory

_MISSING = ("", "None", None)
_SAID = ("qwzx vbnm", "", "None", "\\boxed{}", "<answer></answer>", "{}", "[]")
"""Nonsense first: where it is paid, everything is."""


@environment_check("answer-missing", "rows without an answer pay nothing", audit=True)
async def check_missing_answers(subject: Subject) -> Finding:
    """Look for rows without an answer, take the answer out of others, and give silence, nonsense and empty marks.

    Where an answer could not be read from the data, nothing is compared with nothing, and everybody is right.
    """
    made = subject.environment.each()[0].build()
    if not isinstance(made, QuestionAnswer) or not subject.tasks:
        return Finding("skipped", "There are no rows with answers.")
    found, column = await search(subject), _column(made, subject.tasks[0])
    if not column:
        return Finding("skipped", "The rows have no column of answers.")
    empty = [number for number, row in enumerate(subject.tasks) if column_of(row, column) in _MISSING]
    for number in empty[:3]:
        if (paid := await _paid(found, dict(subject.tasks[number]), _SAID)) is not None:
            saw = f"{len(empty)} of {len(subject.tasks)} rows have no answer in {column!r}. On row {number} "
            saw += f"{paid.actions[0]!r} gets {paid.total_reward:g}."
            return Finding("failed", saw, "Leave such rows out, or score them 0.", [paid])
    for value in _MISSING:
        row = _with(found.tasks[0].start.task or {}, column, value)
        if (paid := await _paid(found, row, _SAID[:1])) is not None:
            saw = f"If the answer in {column!r} is {value!r}, nonsense such as {paid.actions[0]!r} gets "
            saw += f"{paid.total_reward:g}."
            return Finding("warning", saw, "Refuse rows without an answer, or score them 0.", [paid])
    if empty:
        saw = f"{len(empty)} of {len(subject.tasks)} rows have no answer in {column!r}, and nothing is paid there."
        return Finding("warning", saw, "Leave such rows out: their groups have no gradient.")
    return Finding("passed", "Nonsense is not paid where the answer is missing.")


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


async def _paid(found: Search, row: dict[str, Any], texts: tuple[str, ...]) -> Trajectory | None:
    """The first of these texts that is paid for a row; none if the row cannot be played."""
    task: Task = replace(found.tasks[0], start=replace(found.tasks[0].start, task=row))
    for text in texts:
        [episode] = await found.subject.play(in_order([text]), [task.start])
        if episode.is_counted and episode.total_reward > found.bottom + EPSILON:
            return episode
    return None
