"""Checks that the records of each step are unchanged since they were signed with the user's key."""

from __future__ import annotations

from contextlib import suppress

from turnsmith.errors import RecordError
from turnsmith.records.checkpoints import usable_key
from turnsmith.records.episode_files import episode_files
from turnsmith.records.row_digests import row_digests
from turnsmith.records.run_state import EventKind, RunState
from turnsmith.records.signed_ledger import CHECKPOINT, SETTINGS, is_signed_end, standings, step_digests
from turnsmith.records.signing_key import key_name
from turnsmith.verify.check import HistoryCheck, counted
from turnsmith.verify.history import RunHistory

_SHOWN = {"episodes": "what its episodes recorded", "metrics": "its line in metrics.jsonl"}


class SignaturesCheck(HistoryCheck):
    """Follows the chain of the ledger, and compares its digests with the files in the folder."""

    name = "signatures"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        ends = [event for event in history.events if event["kind"] == EventKind.FINISHED]
        self._end = ends[-1] if ends and history.state is RunState.FINISHED else None
        if not history.is_training:
            self.not_recorded = "nothing was trained"
        elif not history.ledger and "signature" not in (self._end or {}):
            self.not_recorded = "no ledger.jsonl"

    def check_run(self) -> None:
        """Check every line of the ledger, the records that it has digests of, and the end of the run."""
        if self.not_recorded:
            return
        key, lines = usable_key(), self.history.ledger
        known = standings(self.history.run, lines, key)
        for line, standing in zip(lines, known, strict=True):
            sentence = "its line in ledger.jsonl, or the one before, was changed, added or removed after it was signed."
            self.require(standing != "changed", sentence, line["step"])
        self._check_records()
        self._check_end(key, is_signed=bool(known) and known[-1] != "unsigned")
        if unsigned := [line for line, standing in zip(lines, known, strict=True) if standing == "unsigned"]:
            foreign = any("signature" in line for line in unsigned)
            why = "not by your key" if foreign else "by an older turnsmith, or without a key"
            self.unsigned = f"{len(unsigned)} of {counted(len(lines), 'step')} ({why}): changes cannot be told"

    def _check_end(self, key: bytes | None, *, is_signed: bool) -> None:
        if self._end is None or key is None or not (is_signed or self._end.get("key") == key_name(key)):
            return
        lines = self.history.ledger
        is_whole = bool(lines) and is_signed_end(self._end, lines[-1], key)
        self.require(is_whole, "the end of the run was not signed after the last line of ledger.jsonl.")

    def _check_records(self) -> None:
        history, rows = self.history, dict[int, str]()
        if history.has_episodes:
            with suppress(RecordError):  # reported as a damaged file
                rows.update(row_digests(episode_files(history.run)))
        metrics = {line["step"]: line for line in history.metrics}
        for place, line in enumerate(history.ledger):
            step = line["step"]
            if step not in metrics:  # the run stopped in this step
                continue
            now = history.read(step_digests, history.run, step, rows.get(step), metrics[step], not place) or {}
            for name, digest in line.get("files", {}).items():
                # A resume may change the settings, which its first step then records.
                is_past = name == SETTINGS and not (self._end and line is history.ledger[-1])
                if name != CHECKPOINT and not is_past:
                    was = "was changed" if name in now else "is gone"
                    what = _SHOWN.get(name, name)
                    self.require(now.get(name) == digest, f"{what} {was} since the step was recorded.", step)

    def summary(self) -> str:
        """How many steps are signed, and whether there may have been more."""
        steps = counted(len(self.history.ledger), "step")
        if self._end is not None:
            return f"{steps} and the end of the run, signed with your key"
        later = "" if self.history.state is RunState.RUNNING else "; whether later steps were removed cannot be told"
        return f"{steps} signed with your key{later}"
