"""Trains a recipe with the command of its README, to the end, and keeps its curve.

    python -m benchmarks.recipe number_game --json

Prints its evaluations on held-out starts, and with `--json` adds them to `benchmarks/results/recipe_NAME.json`, from
which `python -m docs.images.recipes` draws `recipes/NAME/curve.svg`. Settings may follow the name, such as
`training.seed=1`. Exits with 1 unless the last evaluation is above the first by more than their intervals.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import results
from tests.recipes import NAMES, ROOT, training

from turnsmith import RunFolder

SHARES = ("agent",)
"""Recipes whose reward is a share; those of the others are 0 or 1, or a success is told by the environment."""


def figures(run: RunFolder, kind: str) -> dict[str, float]:
    """Success or reward at each evaluation with its interval, and what the run took."""
    steps, evaluations = run.read_metrics(), run.read_evaluations()
    points = []
    for record in evaluations:
        mean = record[f"{kind}/mean"]  # if all are the same there is no interval
        points.append((record["step"], mean, record.get(f"{kind}/low", mean), record.get(f"{kind}/high", mean)))
    shown: dict[str, float] = {}
    for step, mean, low, high in points:
        shown |= {f"score_{step}": mean, f"low_{step}": low, f"high_{step}": high}
    shown |= {"first": points[0][1], "last": points[-1][1], "rose": float(points[-1][2] > points[0][3])}
    shown |= {"held_out": evaluations[-1]["episodes/total"], "steps": len(steps)}
    seconds = sum(record["time/step"] for record in steps) + sum(one["time/evaluate"] for one in evaluations)
    return shown | {"episodes": sum(record["episodes/total"] for record in steps), "minutes": seconds / 60}


def main() -> int:
    """Train, print and keep the curve, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("settings", nargs="*", help="settings that differ, KEY=VALUE")
    results.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own = [f"checkpoint.output_dir={folder}", "checkpoint.run_name=run", *options.settings]
        subprocess.run([sys.executable, "-m", "turnsmith", *training(options.name), *own], cwd=ROOT, check=True)
        shown = figures(RunFolder.open(f"{folder}/run"), "reward" if options.name in SHARES else "success")
    curve: dict[str, Any] = {name: round(value, 3) for name, value in shown.items()}
    print(curve)
    results.record(f"recipe_{options.name}", shown, is_wanted=options.json)
    if not shown["rose"]:
        print("missed: the intervals of the first and the last evaluation overlap.")
    return 0 if shown["rose"] else 1


if __name__ == "__main__":
    sys.exit(main())
