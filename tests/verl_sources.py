"""Tries turnsmith against other versions of verl: `python -m tests.verl_sources --source main=FOLDER`.

FOLDER has the package `verl`: a clone, or an unpacked source package or wheel. It stands before the installed verl on
the path of every process, so nothing is installed. `verl_sources.txt` has what is known not to fit, a line for each:

    SOURCE gone|changed MEMBER OURS     a member that turnsmith relies on, of `tests/unit/trainer/verl_members.txt`
    SOURCE fails TEST REASON            a contract test

Ends with status 1 if something is gone or fails that is not known. `--write` replaces the lines of these sources.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".txt")
FILES = (
    "test_verl_keys",
    "test_verl_overrides",
    "test_verl_dataset",
    "test_to_verl",
    "test_layouts",
    "test_vllm_calls",
)


class Finding(NamedTuple):
    """What does not fit."""

    source: str
    kind: str
    what: str
    why: str

    def line(self) -> str:
        return " ".join(self)


def known() -> list[Finding]:
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    return [Finding(*line.split(" ", 3)) for line in lines]


def members(name: str, folder: Path) -> Iterator[Finding]:
    """Members that turnsmith relies on and that are not there, or have another source."""
    from tests.unit.trainer.test_verl_members import ROWS, digest

    for place, wanted, _, ours in ROWS:
        file, _, member = place.partition(":")
        if file.startswith("verl/"):
            path = folder / file
            there = digest(path.read_text(), member) if path.is_file() else ""
            if there != wanted:
                yield Finding(name, "changed" if there else "gone", place, ours)


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that imports verl from a folder."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("VERL_", "TURNSMITH_"))}
    # verl's packages bring a folder `tests`, so ours come first.
    return clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), str(folder)])}


def behaviour(name: str, folder: Path) -> Iterator[Finding]:
    """What `verl_behaviour.py` finds wrong."""
    command = [sys.executable, "-m", "tests.unit.trainer.verl_behaviour"]
    done = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, timeout=900)
    if done.returncode:
        yield Finding(name, "fails", "verl_behaviour", _one_line(done.stderr.strip().rpartition("\n")[2]))
        return
    for check, told in json.loads(done.stdout.splitlines()[-1]).items():
        if told:
            yield Finding(name, "fails", f"verl_behaviour::{check}", _one_line(told))


def contract_tests(name: str, folder: Path) -> Iterator[Finding]:
    """The tests of verl's settings that fail."""
    with tempfile.TemporaryDirectory() as kept:
        report = Path(kept) / "report.xml"
        files = [f"tests/unit/trainer/{file}.py" for file in FILES]
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(report), "-p", "no:cacheprovider", *files]
        subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, timeout=1800)
        for case in ElementTree.parse(report).iter("testcase"):  # our own pytest wrote it
            for told in (*case.iter("failure"), *case.iter("error")):
                test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}".replace(" ", "_")
                yield Finding(name, "fails", test, _one_line(told.get("message") or ""))


def _one_line(text: str) -> str:
    lines = " ".join(text.split())
    return f"{lines[:200]}..." if len(lines) > 200 else lines or "-"


def markdown(findings: list[Finding]) -> str:
    """A table: what of turnsmith is affected, by source."""
    sources = list(dict.fromkeys(one.source for one in findings))
    rows = [["turnsmith", *sources], ["---"] * (len(sources) + 1)]
    for part in [*sorted({_part(one) for one in findings}), ""]:
        concerned = [one for one in findings if not part or _part(one) == part]
        cell = _cell if part else _count
        name = f"`{part}`" if part else "all"
        rows.append([name, *(cell([one for one in concerned if one.source == each]) for each in sources)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _count(findings: list[Finding]) -> str:
    kinds = Counter(one.kind for one in findings)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in ("gone", "fails", "changed") if kinds[kind])


def _part(one: Finding) -> str:
    return one.what.partition("::")[0] if one.kind == "fails" else one.why.partition(":")[0]


def _cell(findings: list[Finding]) -> str:
    gone = [f"`{one.what.rpartition(':')[2].rpartition('.')[2]}`" for one in findings if one.kind == "gone"]
    counted = _count([one for one in findings if one.kind != "gone"])
    return "; ".join([*([f"gone: {', '.join(gone)}"] if gone else []), *([counted] if counted else [])])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--write", action="store_true", help="write down what was found as known")
    arguments = parser.parse_args()
    findings: list[Finding] = []
    for source in arguments.source:
        name, _, folder = source.partition("=")
        place = Path(folder).resolve()
        if not folder or not (place / "verl" / "__init__.py").is_file():
            parser.error(f"{source} is not NAME=FOLDER with a package verl in FOLDER")
        for look in (members, behaviour, contract_tests):
            findings += look(name, place)
    before = known()
    if arguments.write:
        names = {source.partition("=")[0] for source in arguments.source}
        kept = [one for one in before if one.source not in names]
        TABLE.write_text("".join(f"{one.line()}\n" for one in [*kept, *findings]))
    print(markdown(findings) if findings else "Everything fits.")
    new = {one[:3] for one in findings if one.kind != "changed"} - {one[:3] for one in before}
    print("".join(f"new: {' '.join(one)}\n" for one in sorted(new)), end="")
    return 1 if new and not arguments.write else 0


if __name__ == "__main__":
    sys.exit(main())
