"""Checks that the ledger balances: in each step, from step to step, and with the recorded episodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from turnsmith.trajectory import Decision, Outcome
from turnsmith.verify.check import HistoryCheck, counted
from turnsmith.verify.history import RunHistory, StepHistory

_SETTLED = ("trained", "masked", "dropped", "filtered")


class LedgerCheck(HistoryCheck):
    """Adds up each line of `ledger.jsonl`, and compares it with the step's episodes."""

    name = "ledger"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        self._carried = 0
        self._steps = 0
        if not history.is_training:
            self.not_recorded = "nothing was trained"
        elif not history.all_ledger:
            self.not_recorded = "no ledger.jsonl"

    def check_step(self, step: StepHistory) -> None:
        """Add up a step's line."""
        if self.not_recorded:
            return
        self._steps += 1
        line = step.ledger
        if line is None:
            self.require(False, "it has no line in ledger.jsonl.", step.step)
            return
        settled = sum(int(line.get(name, 0)) for name in _SETTLED)
        carried = len(line.get("carried", ()))
        carried_in = int(line.get("carried_in", 0))
        opened = int(line.get("dispatched", 0)) + carried_in
        sentence = f"{opened} episodes dispatched or carried in, but {settled} settled and {carried} carried over."
        self.require(opened == settled + carried, sentence, step.step)
        sentence = f"{carried_in} episodes carried in, but the step before carried over {self._carried}."
        self.require(carried_in == self._carried, sentence, step.step)
        self._carried = carried
        outcomes = sum(line.get("outcomes", {}).values())
        self.require(outcomes == settled, f"{settled} episodes settled, but {outcomes} outcomes.", step.step)
        self._check_decisions(step.step, line)
        if self.history.has_episodes:
            self._check_rows(step, line)

    def _check_decisions(self, step: int, line: dict[str, Any]) -> None:
        decisions: dict[str, int] = line.get("decisions", {})
        if not decisions:  # older versions did not write them
            return
        sums = {name: decisions.get(name, 0) for name in _SETTLED[1:]}
        sums["trained"] = sum(decisions.get(kept.value, 0) for kept in Decision if kept.is_counted)
        for name, count in sums.items():
            sentence = f"{line.get(name, 0)} {name}, but {count} by its decisions."
            self.require(int(line.get(name, 0)) == count, sentence, step)

    def _check_rows(self, step: StepHistory, line: dict[str, Any]) -> None:
        rows = Counter(episode.decision for episode in step.episodes)
        rows[Decision.DROPPED] += step.unrecorded
        counts = {name: rows[Decision(name)] for name in _SETTLED[1:]}
        counts["trained"] = sum(rows[kept] for kept in Decision if kept.is_counted)
        for name, count in counts.items():
            sentence = f"{line.get(name, 0)} {name} by the ledger, but {count} by the episodes."
            self.require(int(line.get(name, 0)) == count, sentence, step.step)
        self._compare(step.step, "outcome", self._outcomes(step), line.get("outcomes", {}))
        given_up = Counter(str(attempt.outcome) for attempt in step.attempts)
        # An attempt that was lost with the process that played it has no row.
        lost = Outcome.WORKER_LOST.value
        recorded = {name: count for name, count in line.get("given_up", {}).items() if name != lost}
        self._compare(step.step, "retried attempt", {k: n for k, n in given_up.items() if k != lost}, recorded)
        tokens = Counter[str]()
        for episode in (*step.episodes, *step.attempts):
            tokens[episode.decision.value] += episode.sampled_tokens
        self._compare(step.step, "sampled token", tokens, line.get("tokens", {}))

    def _outcomes(self, step: StepHistory) -> Counter[str]:
        outcomes = Counter(str(episode.outcome or Outcome.ENGINE_FAILED) for episode in step.episodes)
        outcomes[Outcome.WORKER_LOST.value] += step.unrecorded
        return outcomes

    def _compare(self, step: int, what: str, rows: dict[str, int], recorded: dict[str, int]) -> None:
        for name in sorted(rows.keys() | recorded.keys()):
            ours, theirs = recorded.get(name, 0), rows.get(name, 0)
            sentence = f"{ours} {what}s `{name}` by the ledger, but {theirs} by the episodes."
            self.require(ours == theirs, sentence, step)

    def check_run(self) -> None:
        """Look for steps that are recorded twice."""
        steps = Counter(int(line["step"]) for line in self.history.all_ledger)
        for step, count in steps.items() if not self.history.loaded_steps else ():
            self.require(count == 1, f"it has {count} lines in ledger.jsonl.", step)

    def summary(self) -> str:
        """How many steps balance."""
        return f"balanced after {counted(self._steps, 'step')}, with {self._carried} in flight at the end"
