"""Notices that all attempts fail in the same way, so that a run or an evaluation stops early."""

from __future__ import annotations

import math
import re
import time

from turnsmith.trajectory import Outcome, Trajectory

_ATTEMPTS = 8
_EPISODES = 3
_BACKOFF_SECONDS = 1.0
"""A server that starts, or a burst of refused connections, is over by then."""
NOT_RETRIED = " It was not retried, because every attempt until then had failed in the same way."
"""Added to the error of an episode that had retries left."""
# Overload passes, and a lost worker takes innocent episodes along.
_PASSING = (Outcome.WORKER_LOST, Outcome.OVERLOADED)


class SameFailure:
    """Whether all attempts so far have failed in the same way: at least 8, of at least 3 episodes, and one more that
    began a back-off later.

    Example:
        >>> same = SameFailure()
        >>> for attempt in range(9):
        ...     failed = Trajectory(outcome=Outcome.ENVIRONMENT_FAILED, error=f"KeyError: {attempt}")
        ...     same.add(f"episode-{attempt // 3}", failed, began=time.monotonic())
        >>> same.sentence, same.pause() > 0
        ('', True)
        >>> same.add("episode-0", failed, began=time.monotonic() + 2)
        >>> same.sentence, same.pause()
        ('All 10 attempts at 3 episodes failed in the same way: KeyError: 0', 0.0)
    """

    def __init__(self) -> None:
        self._attempts = 0
        self._episodes: set[str] = set()
        self._error = ""
        self._kinds: set[tuple[Outcome | None, str]] = set()
        self._is_refuted = False
        self._verdict_at = math.inf
        """An attempt that begins from then on decides."""
        self._is_certain = False

    def add(self, episode: str, attempt: Trajectory, began: float) -> None:
        """Count an attempt at an episode, which began at this time of the monotonic clock."""
        outcome = attempt.outcome
        self._is_refuted = self._is_refuted or outcome is None or outcome.is_behaviour or outcome in _PASSING
        if self._is_refuted:
            return
        self._attempts += 1
        self._episodes.add(episode)
        self._error = self._error or attempt.error
        # Seeds, addresses and times differ from one attempt to the next.
        self._kinds.add((outcome, re.sub(r"0x[0-9a-f]+|\d+", "#", attempt.error)))
        self._is_certain = self._is_certain or began >= self._verdict_at
        if self._is_likely and self._verdict_at == math.inf:
            self._verdict_at = time.monotonic() + _BACKOFF_SECONDS

    @property
    def _is_likely(self) -> bool:
        enough = self._attempts >= _ATTEMPTS and len(self._episodes) >= _EPISODES
        return enough and len(self._kinds) == 1 and not self._is_refuted

    def pause(self) -> float:
        """Seconds that a retry should wait, because everything seems to fail for the moment."""
        is_open = self._is_likely and not self._is_certain
        return max(0.0, self._verdict_at - time.monotonic()) if is_open else 0.0

    @property
    def sentence(self) -> str:
        """What fails, once that is certain; empty: nothing does."""
        if not (self._is_certain and self._is_likely):
            return ""
        return f"All {self._attempts} attempts at {len(self._episodes)} episodes failed in the same way: {self._error}"
