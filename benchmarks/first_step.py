"""How long it takes from a command to the first optimizer step, of this turnsmith beside another one.

Both train `examples/letters.py` with the tiny model, in turn, in processes of their own. Prints for the mean of all
rounds the seconds of each phase, of CPU time in all processes up to then, and of a later step:

    first step   this / other   (from starting the process to the end of the first optimizer step)

Make the other one first, with an environment of its own, so that its processes load its own code:

    git worktree add ../other COMMIT && cd ../other && python -m venv .venv && .venv/bin/pip install -e '.[cpu]'
    python -m benchmarks.first_step ../other/.venv/bin/python [rounds] [--engine vllm] [--json]

Exits 1 if the first step comes later than half of the other's time, or a step takes longer than 1.1 of the other's.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from benchmarks import results
from benchmarks.rounds import check_rounds, in_turn, median_ratio

from turnsmith.errors import RecordError
from turnsmith.records.run_folder import RunFolder

LETTERS = results.ROOT / "examples" / "letters.py"
PHASES = ("starting", "starting workers", "loading model", "ready")
"""The events that part the start; each belongs to the time before it."""
LIMITS = {"first step": 0.5, "step": 1.1}
"""Times the other's."""
_LOOK_SECONDS = 0.1
_PATIENCE = 900.0


@dataclass
class Measured:
    """One run."""

    seconds: dict[str, float]
    """When each phase had ended, the CPU seconds up to the first step, and the median of the steps after it."""


def measure(python: str, engine: str, steps: int) -> Measured:
    """Train up to a step with the turnsmith of an interpreter, and stop."""
    settings = [
        f"inference.backend={engine}",
        "inference.max_tokens=8",
        "training.learning_rate=1e-2",
        "training.num_epochs=4",
    ]
    other_engine = ["-P", "-m", "turnsmith", "train", f"{LETTERS}:Letters", "--model", "tiny", *settings]
    command = [python, *([str(LETTERS)] if engine == "transformers" else other_engine)]
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        process = psutil.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            cpu = _cpu_until(process, lambda: _steps(folder) >= 1)
            _cpu_until(process, lambda: _steps(folder) >= steps)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
        run = _run(folder)
        ended = {str(one.get("content") or one["kind"]): one["time"] - began for one in reversed(run.read_events())}
        first = [one["time"] - began for one in run.read_events() if one.get("content") == "generate"][1]
        times = [record["time/step"] for record in run.read_metrics()[2:]]
    parts = {phase: ended[phase] for phase in PHASES} | {"first step": first, "CPU": cpu}
    return Measured(parts | {"step": statistics.median(times)})


def _run(folder: str) -> RunFolder:
    return RunFolder.open(next(Path(folder, "runs").iterdir()))


def _steps(folder: str) -> int:
    with suppress(RecordError, OSError, StopIteration):
        return len(_run(folder).read_metrics())
    return 0


def _cpu_until(process: Any, is_reached: Any) -> float:
    """CPU seconds of a process and all that it started, those that have ended included, once something is reached."""
    spent: dict[int, float] = {}
    until = time.monotonic() + _PATIENCE
    while not is_reached():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"The run made no such step:\n{process.communicate()[1][-3000:]}")
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                spent[each.pid] = sum(each.cpu_times()[:2])
        time.sleep(_LOOK_SECONDS)
    return sum(spent.values())


def main() -> None:
    """Measure both in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="the interpreter of the other one's environment")
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    parser.add_argument("--steps", type=int, default=12, help="at least 3: the first two are not counted as steps")
    results.add_option(parser)
    options = parser.parse_args()
    check_rounds(parser, options)
    runs: dict[str, list[Measured]] = {"other": [], "this": []}
    for python in (options.other, sys.executable):  # what is on the disk is read once before
        measure(python, options.engine, 3)
    for name, python in in_turn((("other", options.other), ("this", sys.executable)), options.rounds):
        runs[name].append(measure(python, options.engine, options.steps))
        show(name, runs[name][-1])
    ratios = compare(runs)
    name = "first_step" if options.engine == "transformers" else f"first_step_{options.engine}"
    results.record(name, {part.replace(" ", "_"): found for part, found in ratios.items()}, is_wanted=options.json)
    missed = misses(ratios)
    print("missed: " + "; ".join(missed) if missed else f"holds: at most {LIMITS} of the other's time")
    raise SystemExit(bool(missed))


def compare(runs: dict[str, list[Measured]]) -> dict[str, float]:
    """Print the medians beside each other; return the ratios, and the seconds."""
    figures: dict[str, float] = {}
    for part in (*PHASES, "first step", "CPU", "step"):
        seconds = [[run.seconds[part] for run in runs[name]] for name in ("this", "other")]
        ours, theirs = map(statistics.median, seconds)
        figures |= {part: median_ratio(*seconds), f"{part} s": ours, f"{part} other s": theirs}
        print(f"{part:16} this {ours:.2f} s, other {theirs:.2f} s; median of the ratios {figures[part]:.2f}")
    return figures


def misses(ratios: dict[str, float]) -> list[str]:
    """What takes longer than allowed, of the ratios to the other's times."""
    return [
        f"{name}: {ratios[name]:.2f} > {limit} of the other's" for name, limit in LIMITS.items() if ratios[name] > limit
    ]


def show(whose: str, run: Measured) -> None:
    """One line about a run."""
    parts = "   ".join(f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items())
    print(f"{whose:6} {parts}   load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
