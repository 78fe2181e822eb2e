"""Episodes that run at the same time do not disturb each other."""

from __future__ import annotations

import asyncio

from turnsmith.check.comparison import first_difference
from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import NO_TURN, Replay, scripted_episodes, starts_of
from turnsmith.check.subject import Subject

_WAIT_SECONDS = 5.0


async def check_interleaved(subject: Subject) -> Finding:
    """Repeat the actions of scripted episodes, all at once, and compare with one after another."""
    if subject.is_agent:
        return Finding("skipped", "An agent decides itself what it does with the same answers.")
    alone = await scripted_episodes(subject)
    if sum(episode.is_counted and episode.num_turns > 0 for episode in alone) < 2:
        return Finding("skipped", NO_TURN)
    opened, all_open = set[str](), asyncio.Event()

    async def wait_for_all(episode_id: str, turn: int) -> None:
        """No episode takes its first turn before all have been reset."""
        opened.add(episode_id)
        if len(opened) == len(alone):
            all_open.set()
        if turn == 0:
            try:
                await asyncio.wait_for(all_open.wait(), _WAIT_SECONDS)
            except TimeoutError:
                pass  # the reset of another one failed, or is slow

    replay, starts = Replay(alone, subject.chat.close_id, wait_for_all), starts_of(subject, alone)
    together = await subject.play(replay, starts, concurrency=len(starts))
    again = await subject.play(Replay(alone, subject.chat.close_id), starts, concurrency=1)
    # What differs when it is played alone again is chance, which another check is for.
    differing = [
        (one, other)
        for one, other, third in zip(alone, together, again, strict=True)
        if first_difference(one, other) and not first_difference(one, third)
    ]
    if differing:
        saw = (
            f"{len(differing)} of {len(alone)} episodes went another way when all ran at the same time. In the first, "
            f"{first_difference(*differing[0])}."
        )
        fix = (
            "Keep all state in the object (`self`): no class attributes, module variables, global generators, fixed "
            "file names or ports. Every episode has an object of its own."
        )
        return Finding("failed", saw, fix, differing[0])
    return Finding("passed", f"{len(alone)} episodes at the same time went as they did alone.")


INTERLEAVED = Check(
    "episodes do not disturb others",
    "Repeats the actions of scripted episodes with all of them running at the same time.",
    "Training runs hundreds at once; shared state gives the model rewards for what another episode did.",
    check_interleaved,
)
