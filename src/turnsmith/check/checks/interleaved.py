"""Episodes that run at the same time, or in the process of others that have ended, go as they would alone."""

from __future__ import annotations

from dataclasses import replace

from turnsmith.check.finding import Check, Finding
from turnsmith.check.overlap import FIX, look_for_disturbance
from turnsmith.check.scripted import NO_TURN, plausible_reply, scripted_episodes, scripted_starts, starts_of
from turnsmith.check.subject import Subject
from turnsmith.env.isolation.settings import HERE, PROCESSES
from turnsmith.trajectory import Trajectory

_MOST, _BRIEF, _BRIEF_TURNS = 6, 3, 3
"""Episodes that are played at once and, before training, episodes and their turns."""


async def check_interleaved(subject: Subject) -> Finding:
    """Repeat the actions of scripted episodes so that their calls overlap, and compare with one after another."""
    if subject.is_agent:
        return _AGENT
    alone = [one for one in await scripted_episodes(subject) if one.is_counted and one.num_turns > 0]
    # From the first and the last, which are the model's if there is one.
    alone = alone[: _MOST // 2] + alone[_MOST // 2 :][-_MOST // 2 :]
    return await _find(subject, alone, None)


async def check_briefly(subject: Subject) -> Finding:
    """Before a run: a few turns of a few episodes of each environment, without the reward function."""
    if subject.is_agent:
        return _AGENT
    if any(spec.mode not in (*HERE, *PROCESSES) or "://" in str(spec.target) for spec in subject.environment.each()):
        return Finding("skipped", "The environment runs on another machine.")
    found: Finding | None = None
    for spec in subject.environment.each():
        cache = dict[str, object]()
        one, alone = replace(subject, environment=spec, reward_fn=None, cache=cache), list[Trajectory]()
        rollout = one.rollout()
        rollout = replace(rollout, limits=replace(rollout.limits, turns=_BRIEF_TURNS))
        subject.cache.setdefault("overlaps", []).append(cache)
        for start in scripted_starts(one)[:_BRIEF]:
            alone += await one.play(plausible_reply, [start], rollout=rollout)
        finding = await _find(one, [one for one in alone if one.is_counted], _BRIEF_TURNS)
        found = finding if found is None or finding.status in ("failed", "warning") else found
    return found or _AGENT


async def _find(subject: Subject, alone: list[Trajectory], turns: int | None) -> Finding:
    if len(alone) < 2:
        return Finding("skipped", NO_TURN)
    found = await look_for_disturbance(subject, starts_of(subject, alone), alone, turns)
    if found is None:
        return Finding("passed", f"{len(alone)} episodes went as they did alone with calls between those of others.")
    done = found.refusal or found.cost
    return Finding("failed" if found.refusal else "warning", f"{found.saw} {done}", FIX, found.differing[0])


_AGENT = Finding("skipped", "An agent decides itself what it does with the same answers.")
INTERLEAVED = Check(
    "episodes do not disturb others",
    "Repeats the actions of scripted episodes with each call, in worker processes each line, between others' calls.",
    "Training runs hundreds at once; shared state gives the model rewards for what another episode did.",
    check_interleaved,
)
