"""What the watch for drift keeps of one finished episode: numbers, and some phrases of what the model wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from turnsmith.rollout.unskilled import named
from turnsmith.trajectory import Trajectory

_WORDS = 4
_MOST_PHRASES = 64
_MOST_CHARACTERS = 20_000
_WORD = re.compile(r"\w+|[^\w\s]")
TOP = 4
"""The best quarter of a step's episodes, by reward."""


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One episode that counts."""

    episode_id: str
    group_id: str
    reward: float
    success: bool | None
    tokens: int
    """Those that the model sampled."""
    has_format_problem: bool
    """Whether a tool call in it could not be parsed."""
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    """The contribution of each reward term."""
    phrases: frozenset[str] = frozenset()
    """Some of the runs of four words in what the model wrote, the same ones for the same text."""
    rule: str = ""
    """The rule without skill by which the last turn can be said; empty: none that is known."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> EpisodeSummary:
        """Of a finished episode."""
        return cls(
            trajectory.episode_id,
            trajectory.group_id,
            trajectory.total_reward,
            trajectory.reported_success,
            trajectory.sampled_tokens,
            any("format_problem" in info for info in trajectory.infos),
            dict(trajectory.reward_shares),
            phrases_of("\n".join(trajectory.actions)[:_MOST_CHARACTERS]),
            _rule_of(trajectory),
        )


def _rule_of(trajectory: Trajectory) -> str:
    if not trajectory.actions:
        return ""
    opening = "\n".join(str(one.get("content")) for one in trajectory.messages[:2] if one["role"] != "assistant")
    return named(opening[-_MOST_CHARACTERS:], trajectory.actions[-1][:_MOST_CHARACTERS])


def phrases_of(text: str) -> frozenset[str]:
    """Runs of four words, numbers as `#`; of a long text those with the smallest hashes, so that texts with a common
    part have common phrases.

    Example:
        >>> sorted(phrases_of("As an expert, I rate this 10."))
        [', i rate this', 'an expert , i', 'as an expert ,', 'expert , i rate', 'i rate this #', 'rate this # .']
    """
    words = ["#" if word.isdigit() else word for word in _WORD.findall(text.lower())]
    found = {" ".join(words[place : place + _WORDS]) for place in range(len(words) - _WORDS + 1)}
    if len(found) <= _MOST_PHRASES:
        return frozenset(found)
    by_hash = sorted(found, key=lambda one: blake2b(one.encode(errors="replace"), digest_size=8).digest())
    return frozenset(by_hash[:_MOST_PHRASES])


def best(episodes: Sequence[EpisodeSummary]) -> list[EpisodeSummary]:
    """The best quarter; empty if its rewards are not above those of the others."""
    ordered = sorted(episodes, key=lambda one: one.reward, reverse=True)
    top = ordered[: len(ordered) // TOP]
    return [one for one in top if one.reward > ordered[-1].reward]


def drift_metrics(episodes: Sequence[EpisodeSummary], *, has_calls: bool) -> dict[str, Any]:
    """What is compared with the first steps of a run: the mean of each reward term, quantiles of lengths, and the
    share of episodes with an unreadable tool call, of all and of the best quarter.
    """
    if not episodes:
        return {}
    record: dict[str, Any] = {}
    for name in sorted({name for one in episodes for name in one.terms}):
        record[f"reward_term/{name}"] = math.fsum(one.terms.get(name, 0.0) for one in episodes) / len(episodes)
    lengths = sorted(one.tokens for one in episodes)
    if lengths[-1]:
        record |= {f"length/p{part}": lengths[part * (len(lengths) - 1) // 100] for part in (10, 50, 90)}
    if has_calls:
        for name, group in (("all", episodes), ("best", best(episodes))):
            record[f"unreadable/{name}"] = sum(one.has_format_problem for one in group) / max(1, len(group))
    return record
