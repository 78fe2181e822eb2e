"""Rewind a run folder to an earlier step, so that training can resume there without recording a step twice."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from turnsmith.records.checkpoints import forget_best, saved_steps
from turnsmith.records.compaction import truncate_episodes
from turnsmith.records.files import atomic_write, remove_temporary
from turnsmith.records.run_folder import RunFolder

_STEP_FILE = re.compile(r"step-(\d+)\b.*")


def rewind(run: RunFolder, step: int) -> None:
    """Delete the metrics, episodes and other records of all steps after `step`.

    Checkpoints of later steps, which exist only if they could not be used, are renamed to `global_step_N.unused`.

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
        match = _STEP_FILE.fullmatch(file.name)
        if match and int(match[1]) > step and file.is_file():
            file.unlink()
    truncate_episodes(run.episodes_dir, step)
    for name in ("metrics.jsonl", "evaluations.jsonl", "ledger.jsonl"):
        _drop_later_lines(run.path / name, step)
    remove_temporary(run.path)
    forget_best(run.checkpoints_dir, after=step)
    for later in saved_steps(run.checkpoints_dir):
        if later > step:
            unused = run.checkpoints_dir / f"global_step_{later}.unused"
            shutil.rmtree(unused, ignore_errors=True)
            (run.checkpoints_dir / f"global_step_{later}").rename(unused)


def _drop_later_lines(file: Path, step: int) -> None:
    if file.exists():
        *lines, _ = file.read_bytes().split(b"\n")  # the last part is empty or unfinished
        with atomic_write(file) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in lines if _step_of(line) <= step))


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")  # A damaged line is dropped.
