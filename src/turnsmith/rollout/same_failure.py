"""Notices that everything fails in the same way, so that nobody waits for the rest of it."""

from __future__ import annotations

import re

from turnsmith.trajectory import Outcome, Trajectory

_ATTEMPTS = 8
_EPISODES = 3
# Overload passes, and a lost worker takes innocent episodes along.
_PASSING = (Outcome.WORKER_LOST, Outcome.OVERLOADED)


class SameFailure:
    """Whether all attempts so far have failed in the same way: at least 8, of at least 3 episodes.

    Example:
        >>> same = SameFailure()
        >>> for attempt in range(9):
        ...     failed = Trajectory(outcome=Outcome.ENVIRONMENT_FAILED, error=f"KeyError: {attempt}")
        ...     same.add(f"episode-{attempt // 3}", failed)
        >>> same.sentence
        'All 9 attempts at 3 episodes failed in the same way: KeyError: 0'
    """

    def __init__(self) -> None:
        self._attempts = 0
        self._episodes: set[str] = set()
        self._error = ""
        self._kinds: set[tuple[Outcome | None, str]] = set()
        self._is_refuted = False

    def add(self, episode: str, attempt: Trajectory) -> None:
        """Count an attempt at an episode."""
        outcome = attempt.outcome
        self._is_refuted = self._is_refuted or outcome is None or outcome.is_behaviour or outcome in _PASSING
        if self._is_refuted:
            return
        self._attempts += 1
        self._episodes.add(episode)
        self._error = self._error or attempt.error
        # Seeds, addresses and times differ from one attempt to the next.
        self._kinds.add((outcome, re.sub(r"0x[0-9a-f]+|\d+", "#", attempt.error)))

    @property
    def sentence(self) -> str:
        """What fails, once that is certain; empty: nothing does."""
        is_certain = self._attempts >= _ATTEMPTS and len(self._episodes) >= _EPISODES and len(self._kinds) == 1
        if self._is_refuted or not is_certain:
            return ""
        return f"All {self._attempts} attempts at {len(self._episodes)} episodes failed in the same way: {self._error}"
