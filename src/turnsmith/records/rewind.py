"""Takes a run folder back to an earlier step, so that it can go on from there and no step stands in it twice."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from turnsmith.records.checkpoints import clean, forget_best, saved_steps
from turnsmith.records.files import replacing
from turnsmith.records.run_folder import RunFolder

_STEP_FILE = re.compile(r"step-(\d+)\b.*")


def rewind(run: RunFolder, step: int) -> None:
    """Remove the metrics, episodes and other records of all steps after `step`.

    Checkpoints of later steps, which are there only if they could not be used, are set aside as `global_step_N.unused`.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> for step in (1, 2, 3):
        ...     run.append_metrics({"step": step})
        >>> rewind(run, 2)
        >>> run.read_metrics()
        [{'step': 1}, {'step': 2}]
    """
    for file in run.path.glob("*/step-*"):
        named = _STEP_FILE.fullmatch(file.name)
        if named and int(named[1]) > step and file.is_file():
            file.unlink()
    for name in ("metrics.jsonl", "evaluations.jsonl", "ledger.jsonl"):
        _cut_lines(run.path / name, step)
    clean(run.checkpoints_dir)
    forget_best(run.checkpoints_dir, after=step)
    for newer in saved_steps(run.checkpoints_dir):
        if newer > step:
            unused = run.checkpoints_dir / f"global_step_{newer}.unused"
            shutil.rmtree(unused, ignore_errors=True)
            (run.checkpoints_dir / f"global_step_{newer}").rename(unused)


def _cut_lines(file: Path, step: int) -> None:
    if file.exists():
        *lines, _ = file.read_bytes().split(b"\n")  # after the last line end there is nothing, or a torn line
        with replacing(file) as beside:
            beside.write_bytes(b"".join(line + b"\n" for line in lines if _step_of(line) <= step))


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # damaged: not worth keeping
