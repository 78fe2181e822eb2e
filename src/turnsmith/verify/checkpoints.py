"""Checks that checkpoints are complete, are of recorded steps, and that none is missing."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from turnsmith.errors import RecordError
from turnsmith.records.checkpoint_manifest import MANIFEST
from turnsmith.records.checkpoints import best_checkpoint, open_checkpoint, read_state, saved_steps
from turnsmith.records.run_state import EventKind, RunState
from turnsmith.records.signed_ledger import CHECKPOINT, file_digest
from turnsmith.verify.check import HistoryCheck
from turnsmith.verify.history import RunHistory

_SAVED = re.compile(r"global_step_(\d{1,18})")
_BEST = "best.json"


class CheckpointsCheck(HistoryCheck):
    """Verifies the checksums of every checkpoint, and compares the checkpoints with metrics, evaluations and events."""

    name = "checkpoints"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        self._folder = history.run.checkpoints_dir
        self._on_disk = saved_steps(self._folder)
        self._foreign: list[int] = []
        """Steps of checkpoints that this user's key did not sign."""
        if not history.is_training:
            self.not_recorded = "nothing was trained"
        elif history.settings is not None and not history.settings.checkpoint.save_interval and not self._on_disk:
            self.not_recorded = "checkpoint.save_interval=0"

    def check_run(self) -> None:
        """Check every checkpoint."""
        if self.not_recorded:
            return
        last = max((int(line["step"]) for line in self.history.metrics), default=0)
        for step in self._on_disk:
            self._check_files(step)
            known = step <= last or step in self.history.loaded_steps
            self.require(known, f"it has a checkpoint, but metrics.jsonl ends at {last}.", step)
        self._check_newest(last)
        self._check_best()
        if self._foreign:
            steps = ", ".join(map(str, sorted(self._foreign)))
            self.unsigned = (
                f"{len(self._on_disk)} whole, but your key did not sign those of steps {steps}: changes cannot be told"
            )
        if not self._on_disk and not self.violations:
            self.not_recorded = "none was due yet"

    def _check_files(self, step: int) -> None:
        folder = self._folder / f"global_step_{step}"
        try:
            checkpoint = open_checkpoint(folder, trust=True)
            manifest = file_digest(checkpoint.path / MANIFEST)
            inside = read_state(checkpoint.path).get("step", step)
        except (RecordError, OSError, ValueError, AttributeError, RecursionError) as error:
            self.require(False, str(error), step)
            return
        self.require(inside == step, f"the state in its checkpoint is of step {inside}.", step)
        lines = [line.get("files", {}) for line in self.history.all_ledger if line["step"] == step]
        written = {files[CHECKPOINT] for files in lines if CHECKPOINT in files}
        self.require(not written or manifest in written, "its checkpoint was changed since the run wrote it.", step)
        if not checkpoint.signed:
            self._foreign.append(step)

    def _check_newest(self, last: int) -> None:
        """The last checkpoint that the run reported must exist, because the newest one is never deleted."""
        reported: list[int] = []
        for event in self.history.events:
            if event["kind"] == EventKind.RESUMED:
                reported = [step for step in reported if step <= int(event.get("step") or 0)]
            elif (
                event["kind"] == EventKind.CHECKPOINT
                and (step := self._own_step(str(event.get("content")))) is not None
            ):
                reported.append(step)
        if reported:
            sentence = "its checkpoint, the newest that the run reported, is not there."
            self.require(reported[-1] in self._on_disk, sentence, reported[-1])
        settings, is_finished = self.history.settings, self.history.state is RunState.FINISHED
        if is_finished and settings is not None and settings.checkpoint.save_interval and last:
            self.require(last in self._on_disk, "the run finished with it, but there is no checkpoint of it.", last)

    def _own_step(self, path: str) -> int | None:
        """The step of a checkpoint in this run's folder, which may have been moved; None for one elsewhere."""
        saved, match = Path(path), _SAVED.fullmatch(Path(path).name)
        is_own = saved.parent.name == self._folder.name and saved.parent.parent.name == self.history.run.name
        return int(match[1]) if match and is_own else None

    def _check_best(self) -> None:
        if not (self._folder / _BEST).exists():
            return
        best = best_checkpoint(self._folder)
        if best is None:
            self.require(False, f"{_BEST} is damaged, or names a checkpoint that is not there.")
            return
        name = best.metric.removeprefix("eval/")
        values = {int(record["step"]): record.get(name) for record in self.history.evaluations}
        recorded = values.get(best.step)
        sentence = f"{_BEST} has {name} {best.value:g}, but its evaluation {json.dumps(recorded, default=str)}."
        is_same = isinstance(recorded, int | float) and math.isclose(recorded, best.value, rel_tol=1e-9)
        self.require(is_same, sentence, best.step)
        for step in self._on_disk:
            value = values.get(step)
            better = isinstance(value, int | float) and value > best.value
            self.require(not better, f"its evaluation is better than that of step {best.step} in {_BEST}.", step)

    def summary(self) -> str:
        """How many checkpoints were verified."""
        return f"{len(self._on_disk)} signed and unchanged, the newest of step {max(self._on_disk)}"
