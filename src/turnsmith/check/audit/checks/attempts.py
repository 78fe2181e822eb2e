"""Attempts that somebody else wrote: a person, a coding agent, an older run, or the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnsmith.check.audit.search import Search, comparable
from turnsmith.check.environment.oracle import in_order
from turnsmith.check.environment.scripted import model_episodes, model_starts
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.errors import ConfigError
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.rollout.unskilled import normal
from turnsmith.trajectory import Trajectory

_PAID = 0.5
_MOST_SHOWN = 3


@environment_check("attempts", "attempts get what they deserve", audit=True)
async def check_attempts(subject: Subject) -> Finding:
    """Play the attempts of `--attempts FILE`, and compare what they earn with whether they are right.

    Whoever knows the task finds in minutes what a list of tricks never will.
    """
    if not subject.attempts:
        return Finding("skipped", "Pass --attempts FILE: lines of a seed or row, actions, and whether they are right.")
    found = await comparable(subject)
    wrong = list[tuple[Mapping[str, Any], Trajectory]]()
    for number, attempt in enumerate(subject.attempts):
        start, actions = read_attempt(subject, number, attempt)
        [episode] = await subject.play(in_order(actions), [start])
        is_paid = episode.is_counted and found.share(episode.total_reward) >= _PAID
        if is_paid != bool(attempt["right"]):
            wrong.append((attempt, episode))
    if not wrong:
        return Finding("passed", f"{len(subject.attempts)} attempts get what they deserve.")
    refused = sum(bool(attempt["right"]) for attempt, _ in wrong)
    saw = f"{refused} attempts that are right are not paid, and {len(wrong) - refused} that are wrong are, of "
    saw += f"{len(subject.attempts)}. The first: {wrong[0][1].actions[-1][:70]!r} gets {wrong[0][1].total_reward:g}."
    return Finding("failed", saw, "Look at these episodes.", [episode for _, episode in wrong[:_MOST_SHOWN]])


def read_attempt(subject: Subject, number: int, attempt: Mapping[str, Any]) -> tuple[EpisodeStart, list[str]]:
    """The start and the actions of a line of `--attempts`."""
    said = attempt.get("actions", attempt.get("answer"))
    actions = [said] if isinstance(said, str) else said
    if not isinstance(attempt.get("right"), bool) or not isinstance(actions, list) or not actions:
        raise ConfigError(
            f"Line {number + 1} of the attempts needs `answer` or `actions`, and `right`, true or false; it has "
            f"{', '.join(attempt)}."
        )
    row = int(attempt.get("row", 0))
    if subject.tasks and not 0 <= row < len(subject.tasks):
        raise ConfigError(f"Line {number + 1} of the attempts is for row {row}, and there are {len(subject.tasks)}.")
    task = dict(subject.tasks[row]) if subject.tasks else None
    name = f"attempt-{number}"
    return EpisodeStart(name, name, int(attempt.get("seed", subject.seed)), task), [str(one) for one in actions]


@environment_check("model-refused", "right answers of the model are paid", audit=True)
async def check_answers_of_the_model(subject: Subject) -> Finding:
    """Look among the model's own episodes for those that say the right answer and are not paid.

    What the model already does right and is not paid for is unlearned first.
    """
    if subject.engine is None:
        return Finding("skipped", "Needs the model: pass --model.")
    found = await comparable(subject)
    episodes = await model_episodes(subject)
    refused = [one for one in episodes if one.is_counted and _says_it(found, subject, one)]
    if not refused:
        return Finding("passed", f"None of {len(episodes)} episodes of the model says the right answer in vain.")
    saw = f"{len(refused)} of {len(episodes)} episodes of the model end with the right answer and are not paid. The "
    saw += f"first says {refused[0].actions[-1][-70:]!r}."
    fix = "Look whether they are right; if so, let the scorer read them."
    return Finding("warning", saw, fix, refused[:_MOST_SHOWN])


def _says_it(found: Search, subject: Subject, episode: Trajectory) -> bool:
    """Whether an unpaid episode ends with the right answer."""
    starts = {start.episode_id: replace(start, episode_id="") for start in model_starts(subject)}
    start = starts.get(episode.episode_id)
    solutions = [task.solution or () for task in found.tasks if start and task.start.seed == start.seed]
    if not solutions or len(solutions[0]) != 1 or not episode.actions:
        return False
    said, right = normal(episode.actions[-1]), normal(solutions[0][0])
    return found.share(episode.total_reward) < _PAID and bool(right) and f" {said}".endswith(f" {right}")
