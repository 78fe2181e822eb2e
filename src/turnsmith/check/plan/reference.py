"""What a run takes besides its model: measured once on a machine, by training `tiny` twice for a minute, and kept.

The two runs differ in turns and micro-batches, so that what is fixed and what grows with them can be told apart.
Neither of them is a run that is forecast.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil

from turnsmith import __version__
from turnsmith.check.plan.calibrate import Calibration, MeasuredWork, Seconds, calibrate
from turnsmith.check.plan.forecast import Overhead, forecast_step, micro_batches, row_shape
from turnsmith.check.plan.run_memory import RunWatch
from turnsmith.check.plan.workload import EpisodeSample
from turnsmith.concurrency.threads import cores
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import TurnsmithError
from turnsmith.inference.models import cache_folder, resolve
from turnsmith.inference.models.shape import ModelShape
from turnsmith.records.files import make_folder, write_text
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind
from turnsmith.trainer.config.layout import RayDemand, micro_batch_size

PHASES = ("generate", "old_log_prob", "update_actor", "sync_weights")


@dataclass(frozen=True)
class MeasuredRun:
    """What a run took. Times are means over its steps without the first."""

    wall: dict[str, float]
    """Seconds of each phase of a step; `rest` is everything else."""
    cpu: dict[str, float]
    """CPU seconds of each phase, of all processes; `sync_weights` includes what follows it."""
    memory: dict[str, float]
    """Peak bytes of each kind of process; `all` is the peak of their sum."""
    turns: float
    """Turns of a step."""


def measured_run(arguments: Sequence[str], folder: Path, name: str, skipped: int = 1) -> MeasuredRun:
    """Run `turnsmith train` with these arguments in `folder`, without checkpoints; replaces a run of that name."""
    shutil.rmtree(folder / name, ignore_errors=True)  # otherwise the new run gets another name, and the old one is read
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
    begins = [(event["content"], event["time"]) for event in run.read_events() if event["kind"] == EventKind.PHASE]
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


_ENVIRONMENT = "turnsmith.check.machine.letters:CountLetters"
_COMMON = "training.group_size=8 training.steps_per_epoch=5 inference.max_tokens=4 inference.max_prompt_tokens=256"
_WORKER = "environment.isolation=process environment.isolation_workers=1"
_SMALL = f"training.batch_size=8 inference.multi_turn=false {_WORKER}"
_LARGE = "training.batch_size=64"


@dataclass(frozen=True)
class Reference:
    """What was measured."""

    wall: Overhead
    cpu: Overhead
    memory: dict[str, float]
    """Bytes of each kind of process with a model that has almost no weights."""


def measured_work(config: ConfigStore, sample: EpisodeSample, model_path: str) -> MeasuredWork:
    """What to measure with a model for a run with these settings and episodes."""
    trust = config.model.trust_remote_code
    shape = ModelShape.of_model(model_path, trust_remote_code=trust)
    rows, length = row_shape(config, sample, shape, shared=True)
    turns = [turn.sampled for one in sample.episodes for turn in one]
    return MeasuredWork(
        model=model_path,
        threads=max(1, cores() // RayDemand.of(config).gpus),
        context=round(sample.prompt + (sample.response - sample.sampled / sample.turns) / 2),
        sampled=round(sum(turns) / len(turns)),
        sequences=min(config.training.batch_size, config.inference.max_concurrency),
        rows=rows,
        length=length,
        logits=max(rows, round(sample.response * micro_batch_size(config))),
        trust_remote_code=trust,
    )


def reference(*, fresh: bool = False) -> Reference:
    """What a run takes on this machine besides its model. It is measured once, and again if `fresh`."""
    parts = (__version__, version("torch"), version("verl"), platform.node(), str(cores()))
    file = cache_folder().parent / "plan" / f"{'-'.join(parts)}.json"
    if file.is_file() and not fresh:
        return msgspec.json.decode(file.read_text(encoding="utf-8"), type=Reference)
    found = measure_reference()
    make_folder(file.parent)
    write_text(file, json.dumps(dataclasses.asdict(found), indent=1) + "\n")
    return found


def measure_reference() -> Reference:
    """Train `tiny` twice and measure both runs."""
    with tempfile.TemporaryDirectory(prefix="turnsmith-plan-") as name:
        folder = Path(name)
        small, large = (_measure(settings, folder, f"run-{settings == _LARGE:d}") for settings in (_SMALL, _LARGE))
    clocks = [_overhead(small, large, clock) for clock in ("wall", "cpu")]
    return Reference(clocks[0], clocks[1], small.run.memory)


@dataclass(frozen=True)
class _Point:
    config: ConfigStore
    sample: EpisodeSample
    run: MeasuredRun
    calibration: Calibration


def _measure(settings: str, folder: Path, name: str) -> _Point:
    own = f"model.model_name=tiny {_COMMON} {settings}".split()
    run = measured_run([_ENVIRONMENT, *own], folder, name)
    config, sample = apply_overrides(ConfigStore(), own), EpisodeSample.of_file(folder / name)
    return _Point(config, sample, run, calibrate(measured_work(config, sample, resolve("tiny"))))


def _overhead(small: _Point, large: _Point, clock: str) -> Overhead:
    """Seconds of each phase besides the model's work, as a line through two points."""
    lines: dict[str, tuple[float, float]] = {}
    left = [_left(point, clock) for point in (small, large)]
    for phase in (*PHASES, "rest"):
        counts = [point.run.turns if phase == "generate" else micro_batches(point.config) for point in (small, large)]
        low, high = (max(0.0, one[phase]) for one in left)
        slope = max(0.0, (high - low) / (counts[1] - counts[0]))
        lines[phase] = (max(0.0, low - slope * counts[0]), 0.0 if phase == "sync_weights" else slope)
    return Overhead(**lines)


def _left(point: _Point, clock: str) -> dict[str, float]:
    seconds: Seconds = getattr(point.calibration, clock)
    modelled = forecast_step(point.config, point.sample, seconds, Overhead()).phases
    return {phase: took - modelled[phase] for phase, took in getattr(point.run, clock).items()}
