"""What is evaluated on is not what is trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnsmith.check.finding import Check, Finding
from turnsmith.check.opening import is_open
from turnsmith.check.subject import Subject
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED

_STARTS = 16
_MANY = 0.5


async def check_held_out(subject: Subject) -> Finding:
    """Compare the tasks; if there are none, what the environment shows for seeds of training and of evaluation."""
    if subject.validation_tasks:
        if not subject.tasks:
            return Finding("skipped", "There are held-out tasks, but none of training to compare them with.")
        return _compare(subject.tasks, subject.validation_tasks)
    if not subject.config.evaluation.every or subject.is_agent:
        return Finding("skipped", "Nothing is evaluated during training (evaluation.every, --validation).")
    if subject.tasks:
        return Finding("skipped", "The held-out tasks are not known here: pass --validation.")
    held_out = replace(subject, seed=FIRST_SEED, cache={})
    trained, evaluated = [await _openings(one) for one in (subject, held_out)]
    if not trained or not evaluated:
        return Finding("skipped", "No episode opens.")
    same = [text for text in evaluated if text in trained]
    if len(same) > _MANY * len(evaluated):
        saw = f"{len(same)} of {len(evaluated)} held-out starts open like one of {_STARTS} starts of training."
        fix = "Let the seed of `reset` decide more, or pass validation= with tasks that are not trained on."
        return Finding("warning", saw, fix)
    return Finding("passed", f"{len(evaluated)} held-out starts, {len(same)} of them open like one of training.")


def _compare(tasks: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> Finding:
    trained = set(map(_key, tasks))
    same = sum(_key(task) in trained for task in held_out)
    if same:
        saw = f"{same} of {len(held_out)} held-out tasks are among the {len(tasks)} tasks of training."
        return Finding("failed", saw, "Take them out of one of the two.")
    return Finding("passed", f"None of {len(held_out)} held-out tasks is among the {len(tasks)} of training.")


def _key(task: Mapping[str, Any]) -> str:
    """The content of a task, however it is written: case and spaces do not make another one."""
    return " ".join(json.dumps(task, sort_keys=True, default=str).lower().split())


async def _openings(subject: Subject) -> list[str]:
    opened = await subject.openings(subject.starts(_STARTS))
    shown = [episode.messages for episode in opened if is_open(episode)]
    return ["\n".join(message["content"] for message in messages) for messages in shown]


HELD_OUT = Check(
    "held-out starts are held out",
    "Compares the tasks of training and validation, or the openings for the seeds of both.",
    "An evaluation on what was trained on rises although the model only remembers.",
    check_held_out,
    quick=True,
    plays=False,
)
