"""How long it takes from an empty environment to a trained model, with the commands that README gives.

Makes a clone and a virtual environment, installs as README says, and trains the tiny model with `examples/letters.py`
and SmolLM2-135M with one command. Prints the minutes of each command. With `--json` they are added to
`benchmarks/results/first_run.json`. Where PyTorch's own index can't be reached, `--torch` is what pip is asked for
instead, from the index that it is configured with.

    python -m benchmarks.first_run --torch torch==2.13.0+cpu
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import results

ROOT = Path(__file__).resolve().parents[1]
TINY = "python examples/letters.py"
STEPS = 10
SMOLLM2 = (
    "turnsmith train examples/letters.py:Letters --model smollm2 inference.max_tokens=8 training.learning_rate=1e-5 "
    f"training.steps_per_epoch={STEPS}"
)


def install_commands(torch: str | None) -> list[str]:
    """The commands of README's section "Install"."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[2].partition("\n## ")[0]
    commands = [command for line in re.findall(r"^\$ (.+)$", section, re.M) for command in line.split(" && ")]
    assert commands[0].startswith("pip install torch"), commands
    return [f"pip install --no-deps {torch}" if torch else commands[0], *commands[1:]]


def run(command: str, folder: Path, variables: dict[str, str]) -> float:
    """Run a command in the clone, with its environment; returns the minutes it took."""
    began = time.monotonic()
    print(f"$ {command}", flush=True)
    done = subprocess.run(command, shell=True, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"It failed ({done.returncode}):\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    minutes = (time.monotonic() - began) / 60
    print(f"{done.stdout.strip()[-900:]}\n{minutes:.1f} minutes", flush=True)
    return minutes


def main() -> None:
    """Run the commands one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", help="what to install in place of README's first command")
    results.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "turnsmith")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
        subprocess.run([sys.executable, "-m", "venv", f"{place}/venv"], check=True)
        # Nothing that was built or downloaded before: neither models nor compiled kernels.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        variables = {**kept, "PATH": f"{place}/venv/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": f"{place}/cache"}
        installing = [run(command, folder, variables) for command in install_commands(options.torch)]
        tiny, smollm2 = run(TINY, folder, variables), run(SMOLLM2, folder, variables)
    figures = {"install": sum(installing), "tiny": sum(installing) + tiny, "smollm2": sum(installing) + smollm2}
    for name, minutes in figures.items():
        print(f"{name:8} {minutes:5.1f} minutes from an empty environment")
    counts = {"commands": len(installing) + 1, "smollm2_steps": STEPS}
    results.record("first_run", {**figures, **counts}, is_wanted=options.json)


if __name__ == "__main__":
    main()
