"""A short training run in a process of its own, with what it took: seconds of each phase, CPU time and memory."""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from turnsmith.errors import TurnsmithError
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.driver.memory import RunWatch

PHASES = ("generate", "old_log_prob", "update_actor", "sync_weights")


@dataclass(frozen=True)
class MeasuredRun:
    """What a run took. Times are means of its steps without the first."""

    wall: dict[str, float]
    """Seconds of each phase of a step; `rest`: of all else."""
    cpu: dict[str, float]
    """The same in CPU seconds of all processes; what follows `sync_weights` counts to it."""
    memory: dict[str, float]
    """The most bytes of each kind of process; `all`: of all at the same time."""
    turns: float
    """Turns of a step."""


def measured_run(arguments: Sequence[str], folder: Path, name: str, skipped: int = 1) -> MeasuredRun:
    """Run `turnsmith train` with these arguments in `folder`, without checkpoints; replaces a run of that name."""
    shutil.rmtree(folder / name, ignore_errors=True)  # else the new run gets another name, and the old one is read
    own = [f"checkpoint.output_dir={folder}", f"checkpoint.run_name={name}", "checkpoint.save_interval=0"]
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "turnsmith", "train", *arguments, *own, "training.check=false"]
        run = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        with RunWatch(psutil.Process(run.pid)) as watch:
            code = run.wait()
    if code:
        raise TurnsmithError(f"The run {' '.join(arguments)} ended with {code}: {log.read_text()[-2000:]}")
    return read_measured_run(folder / name, watch, skipped)


def read_measured_run(path: Path, watch: RunWatch, skipped: int) -> MeasuredRun:
    """What the records of a run and the watch say."""
    run = RunFolder.open(path)
    metrics = run.read_metrics()[skipped:]
    wall = {phase: statistics.fmean(one[f"time/{phase}"] for one in metrics) for phase in PHASES}
    wall["rest"] = statistics.fmean(one["time/step"] for one in metrics) - sum(wall.values())
    begins = [(event["content"], event["time"]) for event in run.read_events() if event["kind"] == "phase"]
    spans: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for (phase, begin), (_, end) in itertools.pairwise(begins):
        if phase in spans:
            spans[phase].append(watch.cpu_between(begin, end))
    return MeasuredRun(
        wall=wall,
        cpu={phase: statistics.fmean(found[skipped:]) for phase, found in spans.items()} | {"rest": 0.0},
        memory={**watch.peaks, "all": watch.total},
        turns=statistics.fmean(one["turns/mean"] * one["episodes/total"] for one in metrics),
    )
