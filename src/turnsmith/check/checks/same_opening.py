"""The same start has the same first observation."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.opening import is_open
from turnsmith.check.subject import Subject
from turnsmith.trajectory import Trajectory

_MOST_SHOWN = 3


async def check_same_opening(subject: Subject) -> Finding:
    """Reset twice from each start, and compare what the model would see."""
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


SAME_OPENING = Check(
    "same start, same opening",
    "Resets the environment twice from each start.",
    "The episodes of a group are compared with each other; if they begin differently, luck is trained as skill.",
    check_same_opening,
    quick=True,
)
