"""Faults of rewards, graders and environments that were published, most of them mended: the table, and to load them.

The table is `published_faults.toml`: facts and links in our words, nothing of the projects' own code or text. One half,
drawn by a seed, is the test set: nobody looks at how an audit does on it before the end. What had been looked at before
the draw (`seen`) is in the other half. A third set (`set = "fresh"`) was collected when both halves had been used: the
rule by which it was chosen stands in the table before it, and the audit was run on it once.

    python -m benchmarks.published_faults                      # the table, by kind and by project
    python -m benchmarks.published_faults --half work          # ids of one half, or of the set that is called fresh
    python -m benchmarks.published_faults --load gem-reset-seed --source DIR [--venv DIR]
    python -m benchmarks.published_faults --show gem-reset-seed --source DIR --venv DIR
    python -m benchmarks.published_faults --check gem-reset-seed --source DIR --venv DIR --results FILE

`--load` imports the scorer or environment before and after the mend, each in a process of its own, and says what became
of it. `DIR/owner+name` is a clone with its history, or a bare one (also as `DIR/owner+name/repo`). With `--venv` what
the fault needs is installed into an environment below that folder; without, this Python has to have it. What is
imported is the project's own code: try it where it can do no harm. `--show` and `--check` take what a user of the
project would check from `published_subjects`: the first says whether the behaviour that was published is there before
and after the mend, the second runs `turnsmith check --audit` on both and adds a line for each to FILE.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

TABLE = Path(__file__).with_suffix(".toml")
SUBJECTS = Path(__file__).with_name("published_subjects")
CHECK_SECONDS = 60
KINDS = (
    "paid without skill",
    "right answers not paid",
    "parsing of answers",
    "ties and ranges",
    "leak of the answer",
    "writable grader",
    "wrong reward",  # sign, scale, turn or episode
    "bad starts",  # the same, solved, impossible, or held out only by name
    "ends that never come",
    "faults counted as zeros",
    "non-determinism",
)
HALVES = ("work", "test")
FRESH = "fresh"
SEED = 39
_DATA = (".json", ".txt", ".toml", ".yaml", ".yml", ".csv", ".html", ".dat")
_IMPORT = """
import importlib, importlib.util, sys
root, module, file, name = sys.argv[1:]
sys.path.insert(0, root)
if file:
    specification = importlib.util.spec_from_file_location(module, file)
    loaded = importlib.util.module_from_spec(specification)
    sys.modules[module] = loaded
    specification.loader.exec_module(loaded)
else:
    loaded = importlib.import_module(module)
getattr(loaded, name)
"""


@dataclass(frozen=True)
class Fault:
    """One published fault; a commit that is missing is not known, or there is no mend yet."""

    id: str
    project: str
    thread: str
    kind: str
    fault: str
    shows: str = ""
    """Which right answer earns nothing, or which wrong one earns what."""
    mend: str = "merged"
    before: str = ""
    after: str = ""
    source: str = ""
    """The repository whose history has the commits, if it is not called as the project is today."""
    file: str = ""
    name: str = ""
    root: str = "."
    """The folder of the repository that imports begin from."""
    alone: bool = False
    """The file is imported by itself: its package needs more than it does."""
    needs: tuple[str, ...] = ()
    seen: bool = False
    set: str = ""
    """Which later set it belongs to; empty: one of the two halves."""
    loadable: bool = False
    tried: bool = False
    subject: str = ""
    """The module of `published_subjects` that has what is checked; empty: it can't be played."""
    python: str = ""
    """The version of Python that it needs, if not this one."""
    note: str = ""

    @property
    def repository(self) -> str:
        return self.source or self.project

    @property
    def module(self) -> str:
        parts = PurePosixPath(self.file).relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def table() -> list[Fault]:
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["fault"]
    for row in rows:
        row["needs"] = tuple(row.get("needs", ()))
    return [Fault(**row) for row in rows]


def halves(faults: list[Fault], seed: int = SEED) -> dict[str, list[str]]:
    """The ids of each half: half of each kind, the odd one in turn, and what was seen in the work half.

    Faults of later sets are in neither.
    """
    faults = [fault for fault in faults if not fault.set]
    draw = random.Random(seed)
    drawn: dict[str, list[str]] = {half: [] for half in HALVES}
    odd = 0
    for kind in KINDS:
        seen = sorted(fault.id for fault in faults if fault.kind == kind and fault.seen)
        unseen = sorted(fault.id for fault in faults if fault.kind == kind and not fault.seen)
        draw.shuffle(unseen)
        count = len(seen) + len(unseen)
        test = min(len(unseen), (count + odd) // 2)
        odd ^= count % 2
        drawn["test"] += unseen[:test]
        drawn["work"] += seen + unseen[test:]
    return {half: sorted(ids) for half, ids in drawn.items()}


def git_folder(source: Path, repository: str) -> Path:
    clone = source / repository.replace("/", "+")
    for folder in (clone / ".git", clone / "repo", clone):
        if (folder / "HEAD").exists():
            return folder
    raise FileNotFoundError(f"{clone} is no clone of {repository}")


def export(fault: Fault, commit: str, source: Path, into: Path) -> None:
    """What the fault's file is imported with, as it was at a commit: modules everywhere, and its own package's data.

    A stored history can be without its largest files; those are left out.
    """
    git = ["git", f"--git-dir={git_folder(source, fault.repository)}"]
    package = "/".join(PurePosixPath(fault.file).parts[: len(PurePosixPath(fault.root).parts) + 1]) + "/"
    listed = subprocess.run([*git, "ls-tree", "-r", "-z", commit], capture_output=True, check=True).stdout.decode()
    wanted: dict[str, str] = {}
    for line in listed.split("\0")[:-1]:
        description, path = line.split("\t", 1)
        if path == fault.file or (
            not fault.alone and (path.endswith(".py") or (path.startswith(package) and path.endswith(_DATA)))
        ):
            wanted[path] = description.split()[2]
    asked = "\n".join(wanted.values()).encode() + b"\n"
    blobs = io.BytesIO(
        subprocess.run([*git, "cat-file", "--batch"], input=asked, capture_output=True, check=True).stdout
    )
    for path in wanted:
        kind = blobs.readline().split()[1:]
        if kind != [b"missing"]:
            content = blobs.read(int(kind[1]))
            blobs.read(1)
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_bytes(content)


def interpreter(fault: Fault, venvs: Path | None) -> str:
    """A Python that has what the fault needs and, in a folder of its own, the core of turnsmith."""
    if venvs is None:
        return sys.executable
    needs = " ".join(sorted(fault.needs)) + fault.python
    folder = venvs / hashlib.sha256(needs.encode()).hexdigest()[:12]
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        base = f"python{fault.python}" if fault.python else sys.executable
        chosen = {"PYENV_VERSION": fault.python} if fault.python else {}  # pyenv's commands need it
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True, env=os.environ | chosen)
        wanted = [*fault.needs, "-e", str(Path(__file__).parents[1])]
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
        (folder / "installed").touch()
    return str(python)


@contextmanager
def subject_folder(fault: Fault, commit: str, source: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with the project's sources at a commit and the subjects, and the variables to run Python with in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(fault, commit, source, folder)
        shutil.copytree(SUBJECTS, folder / SUBJECTS.name)
        yield folder, os.environ | {"PYTHONPATH": f"{folder / fault.root}{os.pathsep}{folder}", "HF_HUB_OFFLINE": "1"}


def run_subject(fault: Fault, commit: str, source: Path, python: str, part: str) -> Any:
    """Whether the fault shows at a commit."""
    with subject_folder(fault, commit, source) as (folder, variables):
        return _ask_subject(fault, python, part, folder, variables)


def _ask_subject(fault: Fault, python: str, part: str, folder: Path, variables: dict[str, str]) -> Any:
    command = [python, "-m", SUBJECTS.name, fault.subject, fault.id, part]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, timeout=300, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return json.loads(done.stdout.rpartition("result: ")[2])


def check(fault: Fault, side: str, commit: str, source: Path, python: str) -> dict[str, Any]:
    """What `turnsmith check --audit` says of a fault's subject at a commit."""
    with subject_folder(fault, commit, source) as (folder, variables):
        words = _ask_subject(fault, python, "words", folder, variables)
        row: dict[str, Any] = {"id": fault.id, "kind": fault.kind, "side": side, "words": words}
        if isinstance(words, str):
            return {**row, "error": words}
        told, began = folder / "told.json", time.perf_counter()
        command = [python, "-m", "turnsmith", "check", *words, "--audit", "--json", str(told)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=variables, timeout=5 * CHECK_SECONDS, check=False
        )
        row |= {"seconds": round(time.perf_counter() - began, 1), "status": done.returncode}
        if not told.exists():
            return {**row, "error": done.stderr.strip()[-2000:]}
        report = json.loads(told.read_text(encoding="utf-8"))
        slow = sorted(report["checks"], key=lambda one: -one["seconds"])[:3]
        row["slow"] = {one["code"]: one["seconds"] for one in slow}
        said = [one for one in report["checks"] if one["status"] in ("failed", "warning")]
        return {**row, "findings": [{**one, "episodes": len(one["episodes"])} for one in said]}


def load(fault: Fault, commit: str, source: Path, python: str) -> str:
    """What importing it at a commit failed with; empty if it did not fail."""
    with tempfile.TemporaryDirectory() as folder:
        export(fault, commit, source, Path(folder))
        file = str(Path(folder, fault.file)) if fault.alone else ""
        module = Path(fault.file).stem + "_of_fault" if fault.alone else fault.module
        command = [python, "-c", _IMPORT, str(Path(folder, fault.root)), module, file, fault.name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def _print_table(faults: list[Fault]) -> None:
    for fault in sorted(faults, key=lambda one: (KINDS.index(one.kind), one.id)):
        print(f"{fault.kind:24} {fault.id:34} {fault.thread}")
    for title, counts in (
        ("kind", Counter(fault.kind for fault in faults)),
        ("project", Counter(fault.project for fault in faults)),
    ):
        print(f"\n{len(faults)} by {title}:", ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    print(f"loadable {sum(fault.loadable for fault in faults)}, tried {sum(fault.tried for fault in faults)}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--half", choices=(*HALVES, FRESH), help="print the ids of this half or set")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--load", nargs="*", metavar="ID", help="import these before and after; without ids, all that can be"
    )
    parser.add_argument("--show", nargs="*", metavar="ID", help="say whether these show before and after")
    parser.add_argument("--check", nargs="*", metavar="ID", help="audit these before and after")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where --check adds its lines")
    parser.add_argument("--source", type=Path, metavar="DIR", help="clones, as DIR/owner+name")
    parser.add_argument("--venv", type=Path, metavar="DIR", help="install what they need below this folder")
    options = parser.parse_args(arguments)
    faults = table()
    if options.half:
        fresh = sorted(fault.id for fault in faults if fault.set == FRESH)
        print(*(halves(faults, options.seed) | {FRESH: fresh})[options.half], sep="\n")
        return 0
    wanted = next((one for one in (options.load, options.show, options.check) if one is not None), None)
    if wanted is None:
        _print_table(faults)
        return 0
    if options.source is None:
        parser.error("--load, --show and --check need --source DIR")
    if unknown := set(wanted) - {fault.id for fault in faults}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    if options.check is not None and options.results is None:
        parser.error("--check needs --results FILE")
    failed = False
    for fault in faults:
        can = fault.loadable if options.load is not None else bool(fault.subject)
        if fault.id in wanted or (not wanted and can):
            for side, commit in (("before", fault.before), ("after", fault.after)):
                if commit:
                    failed |= _run_one(fault, side, commit, options)
    return int(failed)


def _run_one(fault: Fault, side: str, commit: str, options: argparse.Namespace) -> bool:
    """Load, show or check one side of a fault and print the result; whether that failed."""
    try:
        python = interpreter(fault, options.venv)
        if options.load is not None:
            problem = load(fault, commit, options.source, python)
            print(f"{fault.id} {side}: {problem or 'loaded'}", flush=True)
            return bool(problem)
        if options.show is not None:
            shown = run_subject(fault, commit, options.source, python, "shows")
            print(f"{fault.id} {side}: {shown if isinstance(shown, str) else 'shows' if shown else 'does not show'}")
            return shown is not (side == "before")
        row = check(fault, side, commit, options.source, python)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{fault.id} {side}: {type(error).__name__}: {error}", flush=True)
        return True
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{fault.id} {side}: {row.get('error') or [one['code'] for one in row['findings']]}", flush=True)
    return "error" in row


if __name__ == "__main__":
    raise SystemExit(main())
