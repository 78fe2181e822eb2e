"""Checks that every episode ended once: in one step, with one outcome."""

from __future__ import annotations

from collections import Counter
from typing import Any

from turnsmith.verify.check import HistoryCheck, listed
from turnsmith.verify.history import RunHistory, StepHistory


class EpisodesCheck(HistoryCheck):
    """Follows each episode by its id, from the ledger's list of episodes in flight to its row."""

    name = "episodes"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        self._ended: dict[str, int] = {}
        """The step in which each episode ended."""
        self._in_flight: set[str] = set()
        if not history.has_episodes:
            self.not_recorded = "no episodes"

    def check_step(self, step: StepHistory) -> None:
        """Look for episodes that ended twice, without an outcome, or not at all."""
        if self.not_recorded:
            return
        names = [episode.episode_id for episode in step.episodes]
        for name, count in Counter(names).items():
            self.require(count == 1, f"episode {name} ended {count} times.", step.step)
            before = self._ended.setdefault(name, step.step)
            self.require(before == step.step, f"episode {name} had ended in step {before} already.", step.step)
        for episode in step.episodes:
            self.require(episode.outcome is not None, f"episode {episode.episode_id} has no outcome.", step.step)
        self._check_attempts(step, set(names))
        if step.ledger is not None:
            self._check_flight(step, step.ledger, set(names))

    def _check_attempts(self, step: StepHistory, names: set[str]) -> None:
        tries = Counter(attempt.episode_id for attempt in step.attempts)
        for name, count in tries.items():
            self.require(count == 1, f"attempt {name} is recorded {count} times.", step.step)
            episode = name.rpartition("-try")[0]
            self.require(episode in names, f"attempt {name} was retried, but {episode} did not end.", step.step)
        for episode in step.episodes:
            expected = {f"{episode.episode_id}-try{number + 1}" for number in range(min(episode.attempt, 1000))}
            missing = sorted(expected - tries.keys())
            self.require(not missing, f"attempts are missing: {listed(missing)}.", step.step)

    def _check_flight(self, step: StepHistory, ledger: dict[str, Any], ended: set[str]) -> None:
        """Compare the episodes in flight before and after a step with those that ended in it."""
        carried: list[str] = ledger.get("carried", [])
        after = set(carried)
        self.require(len(after) == len(carried), "the ledger has an episode in flight twice.", step.step)
        both = sorted(after & ended)
        self.require(not both, f"ended, and still in flight by the ledger: {listed(both)}.", step.step)
        gone = sorted(self._in_flight - after - ended)
        self.require(
            len(gone) <= step.unrecorded, f"began in an earlier step and never ended: {listed(gone)}.", step.step
        )
        began = len((ended | after) - self._in_flight) + max(0, step.unrecorded - len(gone))
        dispatched = ledger.get("dispatched", 0)
        sentence = f"{dispatched} episodes began by the ledger, but {began} of them ended or are in flight."
        self.require(began == dispatched, sentence, step.step)
        self._in_flight = after

    def summary(self) -> str:
        """How many ended, and how many are in flight."""
        flight = f", {len(self._in_flight)} still in flight" if self._in_flight else ""
        under_way = self.history.unfinished
        unfinished = f"; step {under_way[0]} was not finished and is not counted" if under_way else ""
        return f"{len(self._ended):,} ended, each once and in one outcome{flight}{unfinished}"
