"""`verify_run`: all checks on one run folder, and their results as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.records.run_folder import RunFolder
from turnsmith.verify.batches import BatchesCheck
from turnsmith.verify.check import HistoryCheck, Violation, counted
from turnsmith.verify.checkpoints import CheckpointsCheck
from turnsmith.verify.episodes import EpisodesCheck
from turnsmith.verify.history import RunHistory
from turnsmith.verify.ledger import LedgerCheck
from turnsmith.verify.metrics import MetricsCheck
from turnsmith.verify.signatures import SignaturesCheck
from turnsmith.verify.versions import VersionsCheck

_CHECKS = (EpisodesCheck, BatchesCheck, VersionsCheck, LedgerCheck, MetricsCheck, SignaturesCheck, CheckpointsCheck)
_MOST_SHOWN = 10
_MOST_READINGS = 5


@dataclass(frozen=True)
class Verdict:
    """The result of one check."""

    check: str
    status: str
    """`ok`, `violated`, `unsigned` or `not recorded`."""
    detail: str
    violations: list[Violation] = field(default_factory=list[Violation])


@dataclass(frozen=True)
class Verification:
    """The results of all checks on a run."""

    run: Path
    state: str
    steps: int
    verdicts: list[Verdict]

    @property
    def violations(self) -> list[Violation]:
        """All violations."""
        return [violation for verdict in self.verdicts for violation in verdict.violations]

    def as_dict(self) -> dict[str, Any]:
        """The results in plain values, with every violation."""
        checks = {
            verdict.check: {
                "status": verdict.status,
                "detail": verdict.detail,
                "violations": [{"step": found.step, "what": found.sentence} for found in verdict.violations],
            }
            for verdict in self.verdicts
        }
        return {"run": str(self.run), "state": self.state, "steps": self.steps, "checks": checks}

    def lines(self) -> Iterator[str]:
        """The results as a table, with the first violations of each check."""
        yield " ".join(f"{self.run.name}: {self.state}, {counted(self.steps, 'step')}".splitlines())
        for verdict in self.verdicts:
            yield f"{verdict.check:<13}{verdict.status:<14}{verdict.detail}"
            for violation in verdict.violations[:_MOST_SHOWN]:
                yield " ".join(f"  {violation}".splitlines())
            if len(verdict.violations) > _MOST_SHOWN:
                yield f"  and {len(verdict.violations) - _MOST_SHOWN:,} more"


def verify_run(folder: RunFolder | str | Path) -> Verification:
    """Check that the records of a run agree with each other; reads its folder and changes nothing.

    Raises:
        RecordError: There is no run there.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> run.append_ledger({"step": 1, "dispatched": 8, "trained": 7, "outcomes": {"completed": 7}})
        >>> run.append_metrics({"step": 1})
        >>> print(*verify_run(run).lines(), sep="\\n")
        demo: unclear, 1 step
        files        ok            every file can be read
        episodes     not recorded  no episodes
        batches      not recorded  no trained/
        versions     not recorded  no episodes
        ledger       violated      1 violation
          step 1: 8 episodes dispatched or carried in, but 7 settled and 0 carried over.
        metrics      ok            1 step in order; no episodes to compare them with
        signatures   unsigned      1 of 1 step (by an older turnsmith, or without a key): changes cannot be told
        checkpoints  not recorded  none was due yet
    """
    run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
    for _ in range(_MOST_READINGS):
        try:
            return _verify(run)
        except FileNotFoundError:  # the run has merged episode files or deleted a checkpoint
            continue
    raise RecordError(f"{run.path} changes faster than it can be read: try again, or wait for the end of the run.")


def _verify(run: RunFolder) -> Verification:
    history = RunHistory(run)
    checks = [check(history) for check in _CHECKS]
    for step in history.steps():
        for check in checks:
            check.check_step(step)
    for check in checks:
        check.check_run()
    damage = [Violation(sentence) for sentence in history.damage]
    files = _verdict("files", damage, "", "every file can be read")
    verdicts = [files, *(_verdict_of(check) for check in checks)]
    return Verification(run.path, history.state.value, len(history.metrics), verdicts)


def _verdict_of(check: HistoryCheck) -> Verdict:
    if check.unsigned and not check.violations:
        return Verdict(check.name, "unsigned", check.unsigned)
    summary = "" if check.violations or check.not_recorded else check.summary()
    return _verdict(check.name, check.violations, check.not_recorded, summary)


def _verdict(name: str, violations: list[Violation], not_recorded: str, summary: str) -> Verdict:
    if violations:
        count = len(violations)
        return Verdict(name, "violated", counted(count, "violation"), violations)
    return Verdict(name, "not recorded", not_recorded) if not_recorded else Verdict(name, "ok", summary)
