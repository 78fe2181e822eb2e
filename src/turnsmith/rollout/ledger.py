"""What became of every episode that was sent off, as a ledger that must balance at each step.

One side counts episodes as they are sent off; the other is what the processes that played them reported and what the
trainer found in its batch. An episode that is on one side only was lost or counted twice, and the step must not go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from turnsmith.errors import TrainingFailure
from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision, Outcome, Trajectory

_SHOWN = 5
_MOST_NOTED = 200
_LEFT_OUT = (Decision.MASKED, Decision.DROPPED)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an episode: how it ended, what the model said in it, how long it took."""

    outcome: str
    tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, trajectory: Trajectory) -> Self:
        """The attempt that a trajectory records."""
        outcome = trajectory.outcome or Outcome.ENGINE_FAILED
        return cls(outcome.value, trajectory.tokens.mask.tobytes().count(1), trajectory.seconds)


@dataclass(slots=True)
class LedgerEntry:
    """One episode that is over."""

    episode_id: str
    group_id: str
    decision: Decision
    attempts: list[Attempt]
    cause: str = ""
    error: str = ""

    @classmethod
    def of(cls, played: EpisodeResult) -> Self:
        """The entry of an episode that was played."""
        last = played.trajectory
        error = last.error or next((one.error for one in played.given_up if one.error), "")
        attempts = [Attempt.of(one) for one in played.attempts]
        return cls(last.episode_id, last.group_id, last.decision, attempts, played.cause or "", error)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell: played once, and kept."""
        return self.decision is Decision.KEPT and len(self.attempts) == 1

    def as_dict(self) -> dict[str, Any]:
        """What stands in the record of a step."""
        return {
            "episode": self.episode_id,
            "decision": self.decision.value,
            "attempts": [[one.outcome, one.tokens, round(one.seconds, 3)] for one in self.attempts],
            "cause": self.cause,
            "error": self.error[:300],
        }


@dataclass(slots=True)
class StepLedger:
    """The balance of one step."""

    step: int
    dispatched: int = 0
    carried_in: int = 0
    """Sent off in earlier steps and not settled by then; only asynchronous schedules have such episodes."""
    decisions: Counter[str] = field(default_factory=Counter[str])
    """Episodes by what became of them; `kept` and `penalised` are those that were trained on."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Episodes by how their last attempt ended."""
    given_up: Counter[str] = field(default_factory=Counter[str])
    """Attempts that were made again, by how they ended."""
    tokens: Counter[str] = field(default_factory=Counter[str])
    """Tokens that the model said: in episodes by decision, and under `retried` in attempts that were given up."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Wall-clock time of the same attempts, added up."""
    carried: list[str] = field(default_factory=list[str])
    """Episodes that are not settled yet."""
    noted: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The episodes that were not simply played once and kept, one by one."""

    @property
    def trained(self) -> int:
        """Episodes that were trained on."""
        return sum(self.decisions[one.value] for one in Decision if one.is_counted)

    def add(self, entry: LedgerEntry) -> None:
        """Settle an episode."""
        self.decisions[entry.decision.value] += 1
        self.outcomes[entry.attempts[-1].outcome] += 1
        self.given_up.update(one.outcome for one in entry.attempts[:-1])
        for place, attempt in enumerate(entry.attempts):
            what = entry.decision if place == len(entry.attempts) - 1 else Decision.RETRIED
            self.tokens[what.value] += attempt.tokens
            self.seconds[what.value] = self.seconds.get(what.value, 0.0) + attempt.seconds
        if not entry.is_plain and len(self.noted) < _MOST_NOTED:
            self.noted.append(entry.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """One line of `ledger.jsonl`."""
        return {
            "step": self.step,
            "dispatched": self.dispatched,
            "carried_in": self.carried_in,
            "trained": self.trained,
            **{one.value: self.decisions[one.value] for one in _LEFT_OUT},
            "carried": self.carried,
            "decisions": dict(self.decisions),
            "outcomes": dict(self.outcomes),
            "given_up": dict(self.given_up),
            "tokens": dict(self.tokens),
            "seconds": {name: round(spent, 3) for name, spent in self.seconds.items()},
            "episodes": self.noted,
        }


class Ledger:
    """Follows every episode from being sent off to its decision.

    Args:
        carried: The episodes that were not settled when the run stopped, if it goes on.
        may_carry: Whether an episode may be settled in a later step than it was sent off in.

    Example:
        >>> ledger = Ledger()
        >>> ledger.dispatch(["g-0", "g-1"])
        >>> ledger.end([LedgerEntry("g-0", "g", Decision.KEPT, [Attempt("completed", 9)])])
        >>> ledger.end([LedgerEntry("g-1", "g", Decision.MASKED, [Attempt("environment_failed")] * 3)])
        >>> step = ledger.close(1, trained=["g-0"])
        >>> step.dispatched, step.trained, dict(step.decisions), dict(step.given_up)
        (2, 1, {'kept': 1, 'masked': 1}, {'environment_failed': 2})
        >>> ledger.dispatch(["h-0", "h-1"])
        >>> ledger.end([LedgerEntry("h-0", "h", Decision.KEPT, [Attempt("completed", 9)])])
        >>> ledger.close(2, trained=["h-0"])
        Traceback (most recent call last):
        turnsmith.errors.TrainingFailure: The ledger of step 2 does not balance: 2 episodes dispatched and 0 carried \
over make 2; 1 trained, 0 masked, 0 dropped and 0 carried on make 1. No end was reported of: h-1.
    """

    def __init__(self, carried: Iterable[str] = (), *, may_carry: bool = False) -> None:
        self._may_carry = may_carry
        self._open: dict[str, list[Attempt]] = {name: [] for name in carried}
        """Sent off and not over, with the attempts that are lost with their process."""
        self._from_before = set(self._open)
        """Those of them that were carried, until they are sent off again."""
        self._ended: dict[str, LedgerEntry] = {}
        """Over, and not yet found in a batch."""
        self._dispatched = 0
        self._carried_in = len(self._open)
        self._wrong: list[str] = []

    def dispatch(self, names: Iterable[str]) -> None:
        """Note episodes that are sent off; those that a stopped run carried are so again, and count as before."""
        for name in names:
            if name in self._from_before:
                self._from_before.remove(name)
                continue
            if name in self._open or name in self._ended:
                self._wrong.append(f"Sent off twice: {name}.")
            self._open[name] = []
            self._dispatched += 1

    def lose(self, names: Collection[str], seconds: float = 0.0) -> None:
        """Note episodes whose process is gone; they are played again from their start."""
        for name in names:
            ended = self._ended.pop(name, None)
            attempts = self._open.setdefault(name, [])
            attempts += ended.attempts[:-1] if ended is not None else []
            attempts.append(Attempt(Outcome.WORKER_LOST.value, 0, seconds))

    def end(self, entries: Iterable[LedgerEntry]) -> None:
        """Note episodes that are over."""
        for entry in entries:
            lost = self._open.pop(entry.episode_id, None)
            if lost is None:
                twice = entry.episode_id in self._ended
                self._wrong.append(f"{'Ended twice' if twice else 'Never sent off'}: {entry.episode_id}.")
                continue
            entry.attempts[:0] = lost
            self._ended[entry.episode_id] = entry

    def close(self, step: int, trained: Collection[str]) -> StepLedger:
        """The balance of a step, from what was reported and the names of the episodes in the trainer's batch.

        Raises:
            TrainingFailure: The two sides differ; both are told.
        """
        balance = StepLedger(step, self._dispatched, self._carried_in)
        found = set(trained)
        self._wrong += [f"Twice in the batch: {name}." for name, count in Counter(trained).items() if count > 1]
        for name in trained:
            entry = self._ended.get(name)
            if entry is None or not entry.decision.is_counted:
                what = "not known to be over" if entry is None else entry.decision.value
                self._wrong.append(f"In the batch, but {what}: {name}.")
        settled = [entry for name, entry in self._ended.items() if name in found or entry.decision in _LEFT_OUT]
        for entry in settled:
            del self._ended[entry.episode_id]
            balance.add(entry)
        balance.carried = [*self._open, *self._ended] if self._may_carry else []
        self._check(balance, len(trained))
        self._dispatched, self._carried_in = 0, len(balance.carried)
        return balance

    def _check(self, balance: StepLedger, in_batch: int) -> None:
        left, right = balance.dispatched + balance.carried_in, len(balance.carried) + sum(balance.decisions.values())
        if not self._may_carry:
            self._wrong += [f"No end was reported of: {_some(self._open)}."] if self._open else []
            self._wrong += [f"Kept, but not in the batch: {_some(self._ended)}."] if self._ended else []
        if left == right and in_batch == balance.trained and not self._wrong:
            return
        masked, dropped = (balance.decisions[one.value] for one in _LEFT_OUT)
        raise TrainingFailure(
            f"The ledger of step {balance.step} does not balance: {balance.dispatched} episodes dispatched and "
            f"{balance.carried_in} carried over make {left}; {balance.trained} trained, {masked} masked, {dropped} "
            f"dropped and {len(balance.carried)} carried on make {right}. {' '.join(self._wrong[:_SHOWN])}"
        )


def episode_name(group: str, number: int | str) -> str:
    """The name of an episode, by that of its group and its number there.

    Example:
        >>> episode_name("00000017", 3)
        '00000017-3'
    """
    return f"{group}-{number}"


def group_name(episode_id: str) -> str:
    """The name of the group that an episode belongs to, by its own.

    Example:
        >>> group_name("00000017-3")
        '00000017'
    """
    return episode_id.rpartition("-")[0]


def split_settled(
    finished: Iterable[EpisodeResult], groups: Collection[str] | None, group_size: int
) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    """The episodes that a step settles, and those that wait for a later one.

    Args:
        finished: Episodes that are over.
        groups: The groups that the step is trained on; None: there is no later step to wait for.
        group_size: Episodes in a group. One that was dropped is in no batch: it is settled when all of it is over.
    """
    pairs = [(group_name(one.trajectory.episode_id), one) for one in finished]
    if groups is None:
        return [one for _, one in pairs], []
    over = Counter(group for group, _ in pairs)
    dropped = {group for group, one in pairs if one.trajectory.decision is Decision.DROPPED}
    now = set(groups) | {group for group in dropped if over[group] == group_size}
    return [one for group, one in pairs if group in now], [one for group, one in pairs if group not in now]


def settle_groups(played: Iterable[EpisodeResult]) -> None:
    """Drop with an episode that is dropped all others of its group, which is played again from another start."""
    played = list(played)
    gone = {one.trajectory.group_id for one in played if one.trajectory.decision is Decision.DROPPED}
    for one in played:
        if one.trajectory.group_id in gone:
            one.trajectory.decision = Decision.DROPPED


def unsettled_episodes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The episodes that the last record of a run's ledger left unsettled."""
    return [str(name) for name in records[-1].get("carried", ())] if records else []


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
