"""The same actions from the same start lead to the same observations and rewards."""

from __future__ import annotations

from turnsmith.check.comparison import first_difference
from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import NO_TURN, Replay, scripted_episodes, starts_of
from turnsmith.check.subject import Subject
from turnsmith.trajectory import Trajectory


async def check_same_episode(subject: Subject) -> Finding:
    """Repeat the actions of scripted episodes, one episode after another."""
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


SAME_EPISODE = Check(
    "same actions, same episode",
    "Plays scripted episodes, then repeats their actions from the same starts.",
    "Chance that the model does not see is noise in every advantage, and such an episode cannot be replayed.",
    check_same_episode,
)
