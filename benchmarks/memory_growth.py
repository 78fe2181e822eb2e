"""How much the private memory of a run's processes grows with each step.

Trains the `tiny` model with the shortest steps there are: four episodes of one turn, no checkpoint, no evaluation. All
the while the memory that each process has for itself is read: pages that it has written to and no other process shares
(`Private_Dirty`). The other part of its USS is pages of files, such as libraries, that no other process has mapped just
now, and it changes whenever a program starts or ends somewhere on the machine. The growth is the slope of the line
through what was read after the first 100 steps, or the first tenth if that is more: until then pools fill up.

Exits 1 if all processes together grow by more than 5 kB a step.

Run, in the project's folder: python -m benchmarks.memory_growth [--steps 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
from benchmarks import results
from tests.e2e.marked_processes import processes_with
from tests.e2e.watched_run import steps_made

LIMIT = 5_000.0
"""Bytes a step, of all processes together."""
SKIPPED = 100
"""Steps that are not counted."""
_ENVIRONMENT = """
from turnsmith import BaseEnvironment

class Letter(BaseEnvironment):
    def reset(self):
        return "Say a"

    def step(self, action):
        return "", len(action) / 100, True, {}
"""
_SETTINGS = (
    "model.model_name=tiny inference.max_tokens=4 inference.max_prompt_tokens=32 inference.max_episode_tokens=48 "
    "training.batch_size=4 training.group_size=4 checkpoint.save_interval=0 environment.isolation=process"
)


def sample(mark: str) -> Counter[str]:
    """The private bytes of each kind of process."""
    found = Counter[str]()
    for process in processes_with(mark):
        try:
            found[_kind(process.cmdline())] += private_bytes(process.pid)
        except (psutil.Error, OSError):
            continue  # it has just ended
    return found


def private_bytes(pid: int | str) -> int:
    """What a process has written to and shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(kilobytes) for kilobytes in re.findall(r"^(?:Private_Dirty|Swap): +(\d+) kB", text, re.M))


def _kind(command: Sequence[str]) -> str:
    """What a process is, by its command line."""
    first = command[0] if command else ""
    if first.startswith("ray::"):
        return first.partition(".")[0]
    if "turnsmith.env.isolation.worker" in " ".join(command):
        return "environment supervisor and worker"
    known = ("-m turnsmith ", "gcs_server", "raylet", "runtime_env/agent", "log_monitor", "resource_tracker")
    return next((name for name in known if name in " ".join(command)), " ".join(command)[:60])


def watch(folder: Path, steps: int, seconds: float) -> list[tuple[int, Counter[str]]]:
    """Train for so many steps, or so long, and return what was read after how many steps."""
    (folder / "letter.py").write_text(_ENVIRONMENT)
    own = [f"training.steps_per_epoch={steps}", f"checkpoint.output_dir={folder}", "checkpoint.run_name=grows"]
    command = [sys.executable, "-m", "turnsmith", "train", f"{folder / 'letter.py'}:Letter", *_SETTINGS.split(), *own]
    until = time.monotonic() + seconds
    mark, read = uuid.uuid4().hex, list[tuple[int, Counter[str]]]()
    with (folder / "log").open("w") as log:
        run = subprocess.Popen(
            command, env=os.environ | {"TURNSMITH_TEST_MARK": mark}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            while run.poll() is None and time.monotonic() < until:
                time.sleep(2)
                made = steps_made(folder / "grows")
                if 0 < made < steps and (not read or made > read[-1][0]):
                    read.append((made, sample(mark)))
        finally:
            code = run.poll()
            for left in processes_with(mark):
                left.kill()
            run.wait()
    if code:
        raise SystemExit((folder / "log").read_text()[-3000:])
    return read


def slopes(read: Sequence[tuple[int, Counter[str]]], after: int) -> dict[str, float]:
    """Bytes that each kind of process grew by per step after so many steps."""
    later = [(step, bytes_of) for step, bytes_of in read if step >= after]
    kinds = sorted({kind for _, bytes_of in later for kind in bytes_of})
    places = [step for step, _ in later]
    return {kind: statistics.linear_regression(places, [one[kind] for _, one in later]).slope for kind in kinds}


def main() -> None:
    """Train, and print the growth of each kind of process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3000.0, help="stop after so long, whatever has been made")
    parser.add_argument("--save", type=Path, help="a JSON file for all readings")
    results.add_option(parser)
    options = parser.parse_args()
    steps = options.steps
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        read = watch(Path(folder), steps, options.seconds)
    seconds = time.monotonic() - began
    if save := options.save:
        save.write_text(json.dumps(read))
    found = slopes(read, max(SKIPPED, steps // 10))
    last = read[-1][1]
    for kind, slope in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{slope / 1000:8.2f} kB a step   {last[kind] / 2**20:7.1f} MiB   {kind}")
    print(f"{sum(found.values()) / 1000:8.2f} kB a step   {sum(last.values()) / 2**20:7.1f} MiB   all")
    figures = {"steps": read[-1][0] + 1, "all_kb": sum(found.values()) / 1000}
    results.record("memory_growth", figures, is_wanted=options.json)
    missed = misses(found)
    verdict = f"missed: {missed}" if missed else "holds"
    print(f"{read[-1][0] + 1} steps in {seconds:.0f} s, {len(read)} readings; {verdict}")
    raise SystemExit(bool(missed))


def misses(slopes_of: dict[str, float]) -> str:
    """By how much all processes together grow, if that is too much."""
    total = sum(slopes_of.values())
    return f"{total / 1000:.1f} kB a step > {LIMIT / 1000:.0f}" if total > LIMIT else ""


if __name__ == "__main__":
    main()
