"""As many episodes at once as training will run: none fails, and nothing is left of them."""

from __future__ import annotations

import asyncio

from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import NO_TURN, plausible_reply, scripted_episodes
from turnsmith.check.subject import Subject
from turnsmith.check.usage import Usage

MOST = 64
"""More than these at once would only take longer."""
_MOST_SHOWN = 3
_SETTLE_SECONDS = 0.2


async def check_many_at_once(subject: Subject) -> Finding:
    """Play a batch of training at once, twice, and count what the second time leaves."""
    if subject.is_agent:
        return Finding("skipped", "Agents are run by `turnsmith eval --concurrency`.")
    if not any(episode.is_counted for episode in await scripted_episodes(subject)):
        return Finding("skipped", NO_TURN)
    number = max(2, min(subject.config.training.batch_size, MOST))
    starts = subject.starts(number)
    first = await subject.play(plausible_reply, starts, concurrency=number)
    await asyncio.sleep(_SETTLE_SECONDS)
    before = Usage.now()
    played = first + await subject.play(plausible_reply, starts, concurrency=number)
    await asyncio.sleep(_SETTLE_SECONDS)
    grown = Usage.now().grown(before)
    failed = [episode for episode in played if not episode.is_counted]
    if failed:
        saw = f"{len(failed)} of {len(played)} episodes failed, {number} at once. The first error: {failed[0].error}"
        fix = "Find what they compete for (a port, a file, sessions, memory), or lower training.batch_size."
        return Finding("failed", saw, fix, failed[:_MOST_SHOWN])
    left = {name: count for name, count in grown.items() if count >= max(2, number // 4)}
    if left:
        counts = " and ".join(f"{count} {name}" for name, count in left.items())
        saw = f"{number} episodes left {counts} behind after they were closed."
        return Finding("failed", saw, "Release them in `close`, which is called after every episode.", played[:1])
    return Finding("passed", f"{number} episodes at once, twice: none failed, and they left nothing behind.")


MANY_AT_ONCE = Check(
    "many at once, nothing left",
    "Plays a batch of training at once, twice, and counts processes, threads and open files after it.",
    "Failed resets cost most of a batch, and what each episode leaves stops a run after hours.",
    check_many_at_once,
)
