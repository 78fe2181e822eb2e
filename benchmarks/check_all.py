"""Runs every benchmark that has a threshold, one after another in short forms, and says which of them missed it.

About 45 minutes on two cores. `step_and_start`, `rollout_throughput`, `memory_growth`, `letters` and `recipe` start
Ray, the second vLLM.

Run, in the project's folder: python -m benchmarks.check_all [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.results import add_names

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "parsers": ("--quick", "--no-verl"),
    "sandbox": ("--quick",),
    "driver_cost": ("--quick",),
    "advantages": ("--cpu-time", "--no-verl", "--rounds", "3"),
    "suspended_episodes": ("--quick",),
    "isolation": ("--quick", "--no-ray"),
    "goodput": ("--quick",),
    "waiting": ("--quick",),
    "cost_growth": (),
    "rollout_throughput": ("--rounds", "2"),
    "step_and_start": ("1", "6"),
    "memory_growth": ("--steps", "2000", "--seconds", "780"),
    "retokenization_drift": (),
    "plan_accuracy": ("--clock", "cpu", "one short turn", "three turns", "many turns", "worker processes", "wider"),
    "letters": (),
    "interval_coverage": ("--draws", "500"),
    "recipe": ("agent",),
}
"""Each benchmark and the arguments of its short form."""
TIMEOUT = 900.0
"""Seconds after which a benchmark counts as missed."""


def run(name: str, arguments: tuple[str, ...]) -> int:
    """Run a benchmark in a process of its own; returns its exit code."""
    print(f"\n--- {name} {' '.join(arguments)}", flush=True)
    try:
        return subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=ROOT, timeout=TIMEOUT, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{name} was stopped after {TIMEOUT:.0f} s")
        return 1


def main() -> None:
    """Run them all, print a table, and exit 1 if any missed its threshold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, BENCHMARKS)
    rows: list[tuple[str, float, int]] = []
    for name in parser.parse_args().names:
        began = time.monotonic()
        code = run(name, BENCHMARKS[name])
        rows.append((name, time.monotonic() - began, code))
    print(f"\n{'benchmark':20} {'seconds':>7}")
    for name, seconds, code in rows:
        print(f"{name:20} {seconds:7.0f}  {'missed' if code else 'ok'}")
    raise SystemExit(any(code for _, _, code in rows))


if __name__ == "__main__":
    main()
