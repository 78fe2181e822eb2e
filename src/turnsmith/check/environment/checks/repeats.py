"""Do the start and the actions alone decide an episode, whatever else runs?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from turnsmith.check.environment.opening import is_open
from turnsmith.check.environment.overlap import FIX, Disturbed, look_for_disturbance
from turnsmith.check.environment.scripted import (
    NO_TURN,
    Replay,
    first_difference,
    plausible_reply,
    scripted_episodes,
    scripted_starts,
    starts_of,
)
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.trajectory import Trajectory

_MOST_SHOWN = 3


@environment_check("same-opening", "same start, same opening", quick=True, rehearsed=True)
async def check_same_opening(subject: Subject) -> Finding:
    """Reset twice from each start, and compare what the model would see.

    The episodes of a group are compared with each other; if they begin differently, luck is trained as skill.
    """
    if subject.is_agent:
        return Finding("skipped", "An agent opens its conversation itself.")
    starts = subject.starts()
    first, second = await subject.first_openings(), await subject.openings(starts)
    failed = [episode for episode in [*first, *second] if not is_open(episode)]
    if failed:
        saw = f"{len(failed)} of {2 * len(starts)} resets failed. The first error: {failed[0].error}"
        return Finding("failed", saw, "Make `reset` work for every start of training.", failed[:_MOST_SHOWN])
    differing = [pair for pair in zip(first, second, strict=True) if _opening(pair[0]) != _opening(pair[1])]
    if differing:
        saw = f"{len(differing)} of {len(starts)} starts opened differently the second time."
        fix = "Draw everything that is random in `reset` from the seed that it gets, or from the global generators."
        return Finding("failed", saw, fix, differing[0])
    return Finding("passed", f"{len(starts)} starts opened twice in the same way.")


def _opening(trajectory: Trajectory) -> list[int]:
    return list(trajectory.tokens.ids[: trajectory.tokens.prompt_length])


@environment_check("same-episode", "same actions, same episode", rehearsed=True)
async def check_same_episode(subject: Subject) -> Finding:
    """Repeat the actions of scripted episodes, one episode after another.

    Chance that the model does not see is noise in every advantage, and such an episode cannot be replayed.
    """
    if subject.is_agent:
        return Finding("skipped", "An agent decides itself what it does with the same answers.")
    first = await scripted_episodes(subject)
    turns = sum(episode.num_turns for episode in first if episode.is_counted)
    if not turns:
        return Finding("skipped", NO_TURN)
    replay, second = Replay(first, subject.chat.close_id), list[Trajectory]()
    for start in starts_of(subject, first):
        second += await subject.play(replay, [start])
    differing = [pair for pair in zip(first, second, strict=True) if first_difference(*pair)]
    if differing:
        saw = (
            f"Stochastic: {len(differing)} of {len(first)} episodes went another way when their actions were "
            f"repeated. In the first, {first_difference(*differing[0])}."
        )
        fix = (
            "If chance is part of the task, leave it: groups compare luck and skill together, so use larger ones. Else "
            "draw it from the seed of `reset`, and keep time, ids and the order of sets out of observations."
        )
        return Finding("warning", saw, fix, differing[0])
    return Finding("passed", f"{len(first)} episodes of {turns} turns went the same way twice.")


_MOST, _BRIEF, _BRIEF_TURNS = 6, 3, 3
"""Number of episodes that are played at once; before training, number of episodes and of their turns."""


@environment_check("interleaved", "episodes do not disturb others")
async def check_interleaved(subject: Subject) -> Finding:
    """Repeat the actions of scripted episodes so that their calls overlap, and compare with one after another.

    Training runs hundreds at once; shared state gives the model rewards for what another episode did.
    """
    if subject.is_agent:
        return _AGENT
    alone = [one for one in await scripted_episodes(subject) if one.is_counted and one.num_turns > 0]
    # Some of the first, and of the last, which are the model's if there is one.
    alone = alone[: _MOST // 2] + alone[_MOST // 2 :][-_MOST // 2 :]
    return await _find(subject, alone, None)


async def check_briefly(subject: Subject) -> Finding:
    """Before a run: a few turns of a few episodes of each environment, without the reward function."""
    if subject.is_agent:
        return _AGENT
    if any("://" in str(spec.target) for spec in subject.environment.each()):
        return Finding("skipped", "The environment runs on another machine.")
    findings: list[Finding] = []
    for number, spec in enumerate(subject.environment.each()):
        one, alone = replace(subject, environment=spec, reward_fn=None, played={}), list[Trajectory]()
        rollout = one.rollout()
        rollout = replace(rollout, limits=replace(rollout.limits, turns=_BRIEF_TURNS))
        for start in scripted_starts(one)[:_BRIEF]:
            alone += await one.play(plausible_reply, [start], rollout=rollout)
        note = partial(subject.played.__setitem__, (Disturbed, number))
        findings.append(await _find(one, [one for one in alone if one.is_counted], _BRIEF_TURNS, note))
    return next((finding for finding in findings if finding.status in ("failed", "warning")), findings[0])


async def _find(
    subject: Subject,
    alone: list[Trajectory],
    turns: int | None,
    note: Callable[[Disturbed], None] = lambda found: None,
) -> Finding:
    if len(alone) < 2:
        return Finding("skipped", NO_TURN)
    found = await look_for_disturbance(subject, starts_of(subject, alone), alone, turns, note)
    if found is None:
        return Finding("passed", f"{len(alone)} episodes went as they did alone with calls between those of others.")
    done = found.refusal or found.cost
    return Finding("failed" if found.refusal else "warning", f"{found.saw} {done}", FIX, found.differing[0])


_AGENT = Finding("skipped", "An agent decides itself what it does with the same answers.")
