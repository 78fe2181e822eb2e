"""Whether openings and observations fit into the limits on tokens."""

from __future__ import annotations

from itertools import pairwise

from turnsmith.check.finding import Check, Finding
from turnsmith.check.opening import measured
from turnsmith.check.scripted import model_episodes, scripted_episodes
from turnsmith.check.subject import Subject
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.trajectory import Outcome, Trajectory

_STARTS = 64
_MANY = 0.2


async def check_tokens(subject: Subject) -> Finding:
    """Count the tokens of openings and observations with the model's tokenizer."""
    if not subject.has_tokenizer:
        return Finding("skipped", "Tokens are those of a model: pass --model.")
    if subject.is_agent:
        return Finding("skipped", "An agent decides itself what it shows the model.")
    told, long = await measured(subject, _spread(subject))
    if long is not None:
        return long
    if not told:
        return Finding("skipped", "No start opened.")
    played = await scripted_episodes(subject)
    if subject.engine is not None:
        played = [*played, *await model_episodes(subject)]
    return _observations(subject, played, told)


def _observations(subject: Subject, played: list[Trajectory], told: str) -> Finding:
    limits = subject.config.inference
    observed = sorted(length for episode in played for length in _lengths(episode))
    most = observed[min(len(observed) - 1, int(0.99 * len(observed)))] if observed else 0
    turns = min(limits.max_turns if limits.multi_turn else 1, max((episode.num_turns for episode in played), default=1))
    needed = most * (turns - 1)
    told += f"; observations at most {most}, {needed} in {turns} turns"
    budget = limits.max_episode_tokens
    cut = [episode for episode in played if episode.outcome is Outcome.TOKEN_LIMIT]
    fix = "Raise inference.max_episode_tokens, shorten observations, or allow fewer turns."
    if most >= budget:
        saw = f"One observation can have {most} tokens, and max_episode_tokens is {budget}."
        return Finding("failed", saw, fix, cut[:2])
    if needed > budget or len(cut) > _MANY * len(played):
        saw = f"{len(cut)} of {len(played)} episodes ran out of max_episode_tokens={budget}: {told}."
        return Finding("warning", saw, fix, cut[:2])
    return Finding("passed", f"Within the limits: {told}.")


def _lengths(episode: Trajectory) -> list[int]:
    """Tokens between each turn and the next."""
    turns = [turn for turn in episode.turns if not turn.branch]
    return [later.start - earlier.stop for earlier, later in pairwise(turns)]


def _spread(subject: Subject) -> list[EpisodeStart]:
    """Starts from all over the dataset, because long rows may come late."""
    if not subject.tasks or len(subject.tasks) <= _STARTS:
        return subject.starts(min(_STARTS, len(subject.tasks or ()) or _STARTS))
    rows = [number * len(subject.tasks) // _STARTS for number in range(_STARTS)]
    rows[-1] = len(subject.tasks) - 1
    return [EpisodeStart(f"row-{row}", f"row-{row}", subject.seed + row, dict(subject.tasks[row])) for row in rows]


TOKENS = Check(
    "tokens against limits",
    "Counts the tokens of 64 openings from all over the dataset, and of the observations in played episodes.",
    "A start whose prompt is too long is lost, and so is the end of an episode that runs out of tokens.",
    check_tokens,
)
