"""The README's example: trains `examples/letters.py` from process start to end, and keeps some of the lines it prints.

Exits 1 if the model has not learned it, by the mean reward of the last step, or if rollout engine and trainer differ in
the probability of a token.

Run, in the project's folder: python -m benchmarks.letters [--json]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import results

from turnsmith.records.run_folder import RunFolder

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "letters.py"
SHOWN = ("step  1/", "step 10/", "step 20/")
WIDTH = 112
"""Characters of a line that are shown."""
LEAST = 0.9
"""Mean reward of the last step."""
MOST = 1e-5
"""Difference in the probability of a token, over all steps."""


def shown(lines: list[str]) -> list[str]:
    """The first line, three steps, and the last line, without what is specific to this machine."""
    kept = [line for line in lines if line.startswith((*SHOWN, "Letters "))]
    cut = [line if len(line) <= WIDTH else f"{line[: WIDTH - 4].rstrip()} ..." for line in kept]
    return [*cut, re.sub(r"in \S*?(runs/\S+)$", r"in \1", lines[-1])]


def main() -> None:
    """Train, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_option(parser)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, EXAMPLE], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.monotonic() - began
        (run,) = Path(folder, "runs").iterdir()
        steps = RunFolder.open(run).read_metrics()
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    reward, difference = steps[-1]["reward/mean"], max(step["rollout_diff/max"] for step in steps)
    told = f"{seconds:.0f} s from start to end, reward {reward:.3f}, probabilities differ by at most {difference:.1g}"
    print("\n".join([*lines[-3:], told]))
    figures = {"seconds": seconds, "steps": len(steps), "reward": reward, "probability_difference": difference}
    results.record("letters", figures, is_wanted=options.json, output="\n".join(shown(lines)))
    is_missed = reward < LEAST or difference > MOST
    limits = f"reward at least {LEAST}, difference at most {MOST:g}"
    print(f"missed: {limits}" if is_missed else f"holds: {limits}")
    raise SystemExit(is_missed)


if __name__ == "__main__":
    main()
