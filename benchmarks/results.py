"""Keeps what benchmarks measured: `--json` adds a reading to `benchmarks/results/NAME.json`.

A file has the command, the day, the commit of the whole tree with the benchmark in it (`+`: with changes on top of it),
the last commit that changed `src`, the machine, and one reading for each run of that command with that `src`.
Run it three times and there are three, of which the docs show the median and the range. Nothing is thrown away: another
command or `src` begins anew, and the readings before it stay under `earlier`, with their commit. Those that take hours
over many seeds ask `kept` which are there already: the same command goes on where it was ended.
`python -m docs.hooks.measurements` writes the figures into docs/measurements.md and README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
FLAG = "--json"
_ABOUT = ("command", "commit", "src", "machine", "measured by", "date")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark the option `--json`."""
    parser.add_argument(FLAG, action="store_true", help="add the figures to benchmarks/results")


def add_names(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Give a benchmark NAME ..., any of these; all if none is named. (`choices` refuses that in Python 3.11.)"""

    def known(word: str) -> str:
        if word not in names:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(names)}")
        return word

    help_text = f"of {', '.join(names)}; all by default".replace("%", "%%")
    parser.add_argument("names", nargs="*", default=list(names), type=known, metavar="NAME", help=help_text)


def record(
    name: str, figures: dict[str, float], *, is_wanted: bool = True, folder: Path = FOLDER, **texts: Any
) -> None:
    """Add a reading to the file of a benchmark, if it was asked for; texts are kept from the last run only."""
    if not is_wanted:
        return
    folder.mkdir(exist_ok=True)
    file, readings = folder / f"{name}.json", kept(name, folder)
    before = _read(file)
    earlier = before.get("earlier", [])
    if before and not readings:
        earlier = [*earlier, {key: before[key] for key in (*_ABOUT, "readings") if key in before}]
    rounded = {key: float(f"{found:.4g}") if isinstance(found, float) else found for key, found in figures.items()}
    about = {**_about(), "commit": commit(), "date": datetime.now(UTC).date().isoformat()}
    whole = {**{key: about[key] for key in _ABOUT}, "readings": [*readings, rounded]}
    whole |= {"earlier": earlier} if earlier else {}
    file.write_text(json.dumps(whole | texts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"recorded reading {len(readings) + 1} in {file.parent.name}/{file.name}")


def kept(name: str, folder: Path = FOLDER) -> list[dict[str, float]]:
    """The readings of this command with this `src` so far."""
    before = _read(folder / f"{name}.json")
    # Until November 2026 `commit` was that of `src`.
    before.setdefault("src", before.get("commit"))
    return before["readings"] if all(before.get(key) == found for key, found in _about().items()) else []


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _about() -> dict[str, str]:
    return {"command": command(), "src": commit("src"), "machine": machine(), "measured by": "the command"}


def command() -> str:
    """How this process was started, without the option that keeps its figures, and without a path of this machine."""
    words = [word for word in sys.argv[1:] if word != FLAG]
    arguments = [f"../other/{Path(word).name}" if Path(word).is_absolute() else word for word in words]
    module = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("")
    return " ".join(["python -m", ".".join(module.parts), *arguments])


def commit(folder: str = ".") -> str:
    """The last commit that changed a folder, with a `+` if there are changes on top of it other than figures."""
    found = _git("log", "-1", "--format=%h", "--abbrev=7", "--", folder)
    return found + "+" * bool(_git("status", "--porcelain", "--", folder, ":!benchmarks/results"))


def machine() -> str:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    cores = len(os.sched_getaffinity(0))
    return f"{cores} {'core' if cores == 1 else 'cores'} of {model}, Python {platform.python_version()}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
