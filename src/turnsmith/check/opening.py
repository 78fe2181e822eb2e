"""Whether episodes open at all: without that, most checks have nothing to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnsmith.check.finding import Check, Finding
from turnsmith.check.subject import Subject
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.trajectory import Trajectory


def is_open(episode: Trajectory) -> bool:
    """Whether its environment was reset, and its opening fits into the limits."""
    return episode.tokens.prompt_length > 0


async def check_opening(subject: Subject) -> Finding:
    """Whether an episode opens from any of the first starts. An agent opens its conversation itself."""
    if subject.is_agent:
        return Finding("passed", "An agent opens its conversation itself.")
    opened = await subject.first_openings()
    if count := sum(map(is_open, opened)):
        return Finding("passed", f"{count} of {len(opened)} starts open.")
    _, long = await measured(subject, subject.starts())
    if long is not None:
        return long
    saw = f"No episode opens, from none of {len(opened)} starts: {opened[0].error}"
    return Finding("failed", saw, "Make `reset` work: the checks that play episodes need it.", opened)


async def measured(subject: Subject, starts: Sequence[EpisodeStart]) -> tuple[str, Finding | None]:
    """How many tokens the openings of these starts have, in words, and what is wrong if some do not fit."""
    # No opening is refused here: how long it is should be said too.
    spec, limit = subject.rollout(), subject.config.inference.max_prompt_tokens
    spec = replace(spec, limits=replace(spec.limits, prompt_tokens=10**9))
    opened = [episode for episode in await subject.openings(starts, rollout=spec) if is_open(episode)]
    lengths = sorted(episode.tokens.prompt_length for episode in opened)
    long = [episode for episode in opened if episode.tokens.prompt_length > limit]
    told = f"openings have {lengths[len(lengths) // 2]} tokens, at most {lengths[-1]}" if lengths else ""
    if not long or not subject.has_tokenizer:
        return told, None
    saw = f"{len(long)} of {len(opened)} starts do not fit into max_prompt_tokens={limit}: {told}."
    fix = f"Set inference.max_prompt_tokens={lengths[-1]} or more, or shorten the first observation."
    return told, Finding("failed", saw, fix, long[:2])


OPENING = Check(
    "an episode opens",
    "Resets from each of a few starts.",
    "Without an opening there is nothing to train on, and nothing else to check.",
    check_opening,
)
