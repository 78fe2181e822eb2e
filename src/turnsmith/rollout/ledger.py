"""The books of a training run: every dispatched episode must be accounted for at each step.

One side is the episodes that were dispatched. The other is what the workers reported as ended and what is in the
trainer's batch. An episode on one side only was lost or counted twice, and training stops with an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from turnsmith.errors import TrainingFailure
from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision, Outcome, Trajectory

_MAX_NAMED = 5
_MAX_DETAILED = 200
_NOT_TRAINED = (Decision.MASKED, Decision.DROPPED, Decision.FILTERED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an episode: its outcome, sampled tokens and wall-clock time."""

    outcome: str
    tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        """The attempt that a trajectory records."""
        outcome = trajectory.outcome or Outcome.ENGINE_FAILED
        return cls(outcome.value, trajectory.sampled_tokens, trajectory.seconds)


@dataclass(slots=True)
class LedgerEntry:
    """One episode that has ended."""

    episode_id: str
    group_id: str
    decision: Decision
    attempts: list[Attempt]
    cause: str = ""
    error: str = ""

    @classmethod
    def of(cls, result: EpisodeResult) -> Self:
        """The entry of an episode that was played."""
        last = result.trajectory
        error = last.error or next((attempt.error for attempt in result.given_up if attempt.error), "")
        attempts = list(map(Attempt.of, result.attempts))
        return cls(last.episode_id, last.group_id, last.decision, attempts, result.cause or "", error)

    @property
    def is_plain(self) -> bool:
        """Whether nothing went wrong with the episode, so that the totals say all there is to say."""
        return self.decision in (Decision.KEPT, Decision.FILTERED) and len(self.attempts) == 1

    def as_dict(self) -> dict[str, Any]:
        """The episode's entry in `ledger.jsonl`."""
        return {
            "episode": self.episode_id,
            "decision": self.decision.value,
            "attempts": [[attempt.outcome, attempt.tokens, round(attempt.seconds, 3)] for attempt in self.attempts],
            "cause": self.cause,
            "error": self.error[:300],
        }


@dataclass(slots=True)
class StepLedger:
    """The totals of one training step."""

    step: int
    dispatched: int = 0
    carried_in: int = 0
    """Dispatched in earlier steps and not settled by then; only asynchronous schedules have such episodes."""
    replayed: int = 0
    """Those of them that a resumed run plays again, from their starts."""
    decisions: Counter[str] = field(default_factory=Counter[str])
    """Episodes by decision; those `kept` and `penalised` were trained on."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Episodes by the outcome of their last attempt."""
    given_up: Counter[str] = field(default_factory=Counter[str])
    """Attempts that were retried, by outcome."""
    tokens: Counter[str] = field(default_factory=Counter[str])
    """Sampled tokens: of last attempts by decision, of earlier ones under `retried`."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock time of the same attempts, summed."""
    carried: list[str] = field(default_factory=list[str])
    """Episodes that are not settled yet."""
    details: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The entries of up to 200 episodes that were retried, penalised, masked or dropped."""

    def __repr__(self) -> str:
        counts = {"carried in": self.carried_in, "replayed": self.replayed, "dispatched": self.dispatched}
        counts |= {**self.decisions, "attempts retried": self.given_up.total(), "carried over": len(self.carried)}
        parts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"StepLedger(step {self.step}: {parts or 'no episodes'})"

    @property
    def trained(self) -> int:
        """Episodes that were trained on."""
        return sum(self.decisions[decision.value] for decision in Decision if decision.is_counted)

    def add(self, entry: LedgerEntry) -> None:
        """Settle an episode."""
        self.decisions[entry.decision.value] += 1
        self.outcomes[entry.attempts[-1].outcome] += 1
        self.given_up.update(attempt.outcome for attempt in entry.attempts[:-1])
        for place, attempt in enumerate(entry.attempts):
            decision = entry.decision if place == len(entry.attempts) - 1 else Decision.RETRIED
            self.tokens[decision.value] += attempt.tokens
            self.seconds[decision.value] = self.seconds.get(decision.value, 0.0) + attempt.seconds
        if not entry.is_plain and len(self.details) < _MAX_DETAILED:
            self.details.append(entry.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """One line of `ledger.jsonl`."""
        return {
            "step": self.step,
            "dispatched": self.dispatched,
            "carried_in": self.carried_in,
            "replayed": self.replayed,
            "trained": self.trained,
            **{decision.value: self.decisions[decision.value] for decision in _NOT_TRAINED},
            "carried": self.carried,
            "decisions": dict(self.decisions),
            "outcomes": dict(self.outcomes),
            "given_up": dict(self.given_up),
            "tokens": dict(self.tokens),
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "episodes": self.details,
        }


class Ledger:
    """Follows every episode from dispatch to decision.

    Args:
        carried: Episodes that a resumed run had not settled when it stopped.
        may_carry: Whether an episode may be settled in a later step than the one it was dispatched in.

    Example:
        >>> ledger = Ledger()
        >>> ledger.dispatch(["g-0", "g-1"])
        >>> ledger.end([LedgerEntry("g-0", "g", Decision.KEPT, [Attempt("completed", 9)])])
        >>> ledger.end([LedgerEntry("g-1", "g", Decision.MASKED, [Attempt("environment_failed")] * 3)])
        >>> step = ledger.close(1, trained=["g-0"])
        >>> step
        StepLedger(step 1: 2 dispatched, 1 kept, 1 masked, 2 attempts retried)
        >>> dict(step.given_up)
        {'environment_failed': 2}
        >>> ledger.dispatch(["h-0", "h-1"])
        >>> ledger.end([LedgerEntry("h-0", "h", Decision.KEPT, [Attempt("completed", 9)])])
        >>> ledger.close(2, trained=["h-0"])
        Traceback (most recent call last):
        turnsmith.errors.TrainingFailure: The episodes of step 2 do not add up: 2 dispatched + 0 carried in = 2, but \
1 trained + 0 masked + 0 dropped + 0 filtered + 0 carried over = 1. Dispatched, but never reported as ended: h-1.
    """

    def __init__(self, carried: Iterable[str] = (), *, may_carry: bool = False) -> None:
        self._may_carry = may_carry
        self._running: dict[str, list[Attempt]] = {name: [] for name in carried}
        """Dispatched and not ended, with the attempts that were lost with their worker."""
        self._resumed = set(self._running)
        """Those of them that a resumed run carried in and has not dispatched again yet."""
        self._ended: dict[str, LedgerEntry] = {}
        """Ended, and not yet settled by a step."""
        self._dispatched = 0
        self._carried_in = len(self._running)
        self._replayed = 0
        self._problems: list[str] = []

    def dispatch(self, names: Iterable[str]) -> None:
        """Count episodes as dispatched; those that a resumed run carried in are counted already."""
        for name in names:
            if name in self._resumed:
                self._resumed.remove(name)
                self._replayed += 1
                continue
            if name in self._running or name in self._ended:
                self._problems.append(f"Dispatched twice: {name}.")
            self._running[name] = []
            self._dispatched += 1

    def lose(self, names: Collection[str], seconds: float = 0.0) -> None:
        """Record episodes that were lost with their worker; another worker plays them again from their start."""
        for name in names:
            ended = self._ended.pop(name, None)
            attempts = self._running.setdefault(name, [])
            attempts += ended.attempts[:-1] if ended is not None else []
            attempts.append(Attempt(Outcome.WORKER_LOST.value, 0, seconds))

    def end(self, entries: Iterable[LedgerEntry]) -> None:
        """Record episodes that have ended."""
        for entry in entries:
            lost = self._running.pop(entry.episode_id, None)
            if lost is None:
                problem = "Ended twice" if entry.episode_id in self._ended else "Ended, but never dispatched"
                self._problems.append(f"{problem}: {entry.episode_id}.")
                continue
            entry.attempts[:0] = lost
            self._ended[entry.episode_id] = entry

    def close(self, step: int, trained: Collection[str]) -> StepLedger:
        """Settle a step's episodes, given the ids of those in the trainer's batch.

        Raises:
            TrainingFailure: The two sides differ; the message has both.
        """
        totals = StepLedger(step, self._dispatched, self._carried_in, self._replayed)
        in_batch = Counter(trained)
        self._problems += [f"In the batch twice: {name}." for name, count in in_batch.items() if count > 1]
        for name in trained:
            entry = self._ended.get(name)
            if entry is None or not entry.decision.is_counted:
                problem = "never reported as ended" if entry is None else entry.decision.value
                self._problems.append(f"In the batch, but {problem}: {name}.")
        for name, entry in list(self._ended.items()):
            if name in in_batch or entry.decision in _NOT_TRAINED:
                del self._ended[name]
                totals.add(entry)
        totals.carried = [*self._running, *self._ended] if self._may_carry else []
        self._check(totals, len(trained))
        self._dispatched, self._carried_in, self._replayed = 0, len(totals.carried), 0
        return totals

    def _check(self, totals: StepLedger, batch_size: int) -> None:
        opened, closed = totals.dispatched + totals.carried_in, len(totals.carried) + totals.decisions.total()
        if not self._may_carry and self._running:
            self._problems.append(f"Dispatched, but never reported as ended: {_shorten(self._running)}.")
        if not self._may_carry and self._ended:
            self._problems.append(f"Kept, but not in the batch: {_shorten(self._ended)}.")
        if opened == closed and batch_size == totals.trained and not self._problems:
            return
        not_trained = " + ".join(f"{totals.decisions[decision.value]} {decision.value}" for decision in _NOT_TRAINED)
        raise TrainingFailure(
            f"The episodes of step {totals.step} do not add up: {totals.dispatched} dispatched + {totals.carried_in} "
            f"carried in = {opened}, but {totals.trained} trained + {not_trained} + "
            f"{len(totals.carried)} carried over = {closed}. {' '.join(self._problems[:_MAX_NAMED])}"
        )


def unsettled_episodes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The episodes that the last line of a run's `ledger.jsonl` left unsettled."""
    return [str(name) for name in records[-1].get("carried", ())] if records else []


def _shorten(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"
