"""Runs every benchmark that judges itself, one after another, with the limits that the docs publish.

About three hours on two cores, most of it learning. Many start Ray, some vLLM. What a benchmark needs besides
turnsmith is installed for it.

Run, in the project's folder: python -m benchmarks.check_all [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import add_names

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "{folder}"
"""A folder that the benchmarks of one call share: `schedules` reads the runs of `heavy_tail`."""
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "parsers": ("--quick", "--no-verl"),
    "sandbox": ("--quick",),
    "driver_cost": ("--quick",),
    "advantages": ("--cpu-time", "--no-verl", "--rounds", "3"),
    "suspended_episodes": ("--quick",),
    "isolation": ("--quick", "--no-ray"),
    "goodput": ("--quick",),
    "waiting": ("--quick",),
    "hostile_answers": ("--count", "10000"),
    "cost_growth": (),
    "rollout_throughput": ("--rounds", "3"),
    "step_and_start": ("3", "6"),
    "memory_growth": ("--steps", "2000", "--seconds", "1700"),
    "retokenization_drift": (),
    "plan_accuracy": ("--clock", "cpu", "one short turn", "three turns", "many turns", "worker processes", "wider"),
    "letters": (),
    "interval_coverage": ("--draws", "500"),
    "recipe": ("agent",),
    "gateway": (),
    "heavy_tail": (FOLDER, "--schedules", "sync", "separate_async", "colocate_async", "--seeds", "3"),
    "schedules": ("compare", f"{FOLDER}/sync", f"{FOLDER}/colocate_async"),
    "agent_learning": ("--out", FOLDER, "--evaluate-every", "12"),
    "reasoning_gym_learning": ("--out", FOLDER),
}
"""Each benchmark and the arguments of its short form."""
ELSEWHERE = {
    "executed_memory": "takes an hour: sixteen models of several GB, one after the other",
    "first_step": "needs another clone to compare with",
    "kill_and_resume": "has a stage of its own in .ci/run",
    "published_faults": "needs clones of the projects, and measures nothing",
    "self_play": "is run by tests/e2e/test_players.py",
}
"""Those that judge themselves and are not run here, with the reason."""
NEEDS = {
    "hostile_answers": ("google-re2==1.1.20251105", "math-verify==0.9.0"),
    "agent_learning": ("pydantic-ai-slim[openai]==2.66.0",),
    "reasoning_gym_learning": ("reasoning-gym==0.1.25",),
}
TIMEOUT, LEARNING_TIMEOUT = 2400.0, 3 * 3600.0
"""Seconds after which a benchmark counts as missed, and one that trains to a curve."""


def run(name: str, arguments: tuple[str, ...], folder: Path) -> int:
    """Run a benchmark in a process of its own; returns its exit code."""
    words = [word.replace(FOLDER, str(folder / "runs")) for word in arguments]
    print(f"\n--- {name} {' '.join(words)}", flush=True)
    packages = str(folder / name)
    if name in NEEDS:
        install_what_is_missing(packages, *NEEDS[name])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))}
    command = [sys.executable, "-m", f"benchmarks.{name}", *words]
    timeout = LEARNING_TIMEOUT if name.endswith("learning") else TIMEOUT
    try:
        return subprocess.run(command, cwd=ROOT, env=variables, timeout=timeout, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"{name} was stopped after {timeout:.0f} s")
        return 1


def install_what_is_missing(folder: str, *requirements: str) -> None:
    """Install packages and what they need into a folder, but nothing that the locks have installed already."""
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    asked = subprocess.run([*pip, "--dry-run", "--report", "-", *requirements], check=True, stdout=subprocess.PIPE)
    found = [one["metadata"] for one in json.loads(asked.stdout)["install"]]
    pins = [f"{one['name']}=={one['version']}" for one in found]
    subprocess.run([*pip, "--no-deps", "--target", folder, *pins], check=True)


def main() -> None:
    """Run them all, print a table, and exit 1 if any missed its threshold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_names(parser, BENCHMARKS)
    rows: list[tuple[str, float, int]] = []
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name in names:
            began = time.monotonic()
            code = run(name, BENCHMARKS[name], Path(folder))
            rows.append((name, time.monotonic() - began, code))
    print(f"\n{'benchmark':20} {'seconds':>7}")
    for name, seconds, code in rows:
        print(f"{name:20} {seconds:7.0f}  {'missed' if code else 'ok'}")
    raise SystemExit(any(code for _, _, code in rows))


if __name__ == "__main__":
    main()
