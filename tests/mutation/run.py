"""Mutation testing: change one thing in a copy of the source, and see whether a unit test notices.

    python -m tests.mutation.run --count 500 --seed 1 --results mutants.jsonl
    python -m tests.mutation.run --count 60 --files core --only-survivors

Draws `--count` single changes (mutants) from all files, or from `--files`. First it runs the unit tests of these
files, without the nightly ones, and notes which lines each test runs; then, for each mutant, the tests that run the
changed statement, quickest first, until one fails. Prints one line per mutant: noticed, TIMED OUT or SURVIVED. If the
tests are killed, they run a second time; killed again, they run without the mutant, to see whether that is its doing.
With `--end-to-end`, what survives in a file of `END_TO_END` is tried on the test that is named there. Mutants that
change no behaviour are listed in equivalent.txt with the reason; they are left out of the percentage. The same seed
draws the same mutants from the same source; those that the file `--results` calls noticed are not tried again. With
`--at-least 92` it exits 1 if fewer than 92 % are noticed; a time-out is not noticed.

Why not a library: mutmut 3 changes nothing outside of functions, draws nothing and first runs all tests on all files;
cosmic-ray starts a process for each mutant, which here imports torch for seconds. Here a mutant is a fork.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutation.forks import TIMEOUT
from tests.mutation.mutants import Mutant, find_mutants, statement_lines
from tests.mutation.reach import Reach, Reached
from tests.mutation.selection import (
    ALL_FILES,
    CORE_FILES,
    PACKAGE,
    ROOT,
    all_tests_of,
    end_to_end_of,
    module_of,
    own_tests,
    paths_of_tests,
)

EQUIVALENT = Path(__file__).with_name("equivalent.txt")

VERDICTS = ("noticed", "noticed end to end", "TIMED OUT", "equivalent", "SURVIVED")
UNNOTICED = (0, 5)
"""Exit codes of pytest: all tests passed; there was no test."""


GONE = -101
"""The code of a run whose process ended without telling one."""


@dataclass
class Slot:
    """A copy of the source, and a process that runs tests on it."""

    source: Path
    process: subprocess.Popen[str]
    traced: Sequence[str] = ()
    """The files of all mutants."""
    known: dict[str, list[Reached]] = field(default_factory=dict)
    """The tests that were run without a mutant, by their paths."""
    clock: int = 0

    @classmethod
    def create(cls, folder: Path, traced: Sequence[str]) -> Slot:
        source = folder / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(source, cls.start(source), traced)

    @staticmethod
    def start(source: Path) -> subprocess.Popen[str]:
        variables = {
            **os.environ,
            "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(source.parent / "hypothesis"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tests.mutation.forks"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, cwd=ROOT, env=variables, text=True, **pipes)

    def baseline(self, files: list[str]) -> Reach:
        """Run all tests of these source files without a mutant, and note the lines that each test reaches.

        Tests that other files have too are run once. One that fails is left out and named: traced, on a busy machine,
        it may take longer than it allows.
        """
        paths = list(dict.fromkeys(path for file in files for path in all_tests_of(file, self.source)))
        new = [path for path in paths if path not in self.known]
        reach = self._reach_of(new, files) if new else Reach([])
        self.known |= {path: [test for test in reach.tests if test.path == path] for path in new}
        return Reach([test for path in paths for test in self.known[path]])

    def _reach_of(self, paths: list[str], files: list[str]) -> Reach:
        output = self.source.parent / "reach.json"
        traced = [str(self.source / "turnsmith" / file) for file in self.traced]
        job = {"paths": paths, "modules": files, "traced": traced, "reach": str(output)}
        output.unlink(missing_ok=True)
        code = self._run(job, 1800)
        reach = Reach.read(output) if code in (0, 1) and output.exists() else Reach([])
        if not reach.tests:
            said = self.log.read_text()[-3000:] if self.log.exists() else ""
            raise SystemExit(f"The tests of {files} fail or are killed without any mutant ({code}):\n{said}")
        for name in reach.failed:
            print(f"left out, because it fails without any mutant: {name}", flush=True)
        return reach

    def test(self, mutant: Mutant, tests: list[Reached]) -> int:
        """Run these tests on a mutant, and return pytest's exit code. If they are killed, run them without it, too."""
        original = (PACKAGE / mutant.file).read_bytes()
        paths = list(dict.fromkeys(test.path for test in tests))
        job = {"paths": paths, "modules": [mutant.file], "only": {test.name: test.limit for test in tests}}
        timeout = 60 + sum(test.limit for test in tests)
        self._write(mutant.file, mutant.apply(original))
        try:
            code = self._run(job, timeout)
        finally:
            self._write(mutant.file, original)
        if was_killed(code) and (without := self._run(job, timeout)):
            raise SystemExit(f"The tests of {mutant.file} fail or are killed without any mutant, too ({without}).")
        return code

    def end_to_end(self, mutant: Mutant, test: str) -> int:
        """Run an end-to-end test on a mutant, in processes of its own, and return pytest's exit code."""
        original = (PACKAGE / mutant.file).read_bytes()
        variables = {**os.environ, "PYTHONPATH": f"{self.source}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "e2e", "-p", "no:cacheprovider", test]
        self._write(mutant.file, mutant.apply(original))
        try:
            return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, timeout=1800).returncode
        except subprocess.TimeoutExpired:
            return TIMEOUT
        finally:
            self._write(mutant.file, original)

    @property
    def log(self) -> Path:
        return self.source.parent / "log.txt"

    def _run(self, job: dict[str, Any], timeout: float) -> int:
        """Run pytest; once more if it is killed, because the machine may have been out of memory."""
        code = self._run_once(job, timeout)
        return self._run_once(job, timeout) if was_killed(code) else code

    def _run_once(self, job: dict[str, Any], timeout: float) -> int:
        arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(ROOT / "pyproject.toml")]
        arguments += ["-x"] if "only" in job else []
        arguments += ["-m", "not nightly", f"--basetemp={self.source.parent / 't'}", *job["paths"]]
        modules = [module_of(file) for file in job["modules"]]
        line = json.dumps({**job, "arguments": arguments, "modules": modules, "timeout": timeout, "log": str(self.log)})
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # It ended after its last run.
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        if answer := self.process.stdout.readline():
            return int(answer)
        print(f"The process that runs the tests ended ({self.process.wait()}); starting another.", file=sys.stderr)
        self.process = self.start(self.source)
        return GONE

    def _write(self, file: str, content: bytes) -> None:
        path = self.source / "turnsmith" / file
        path.write_bytes(content)
        # A .pyc file is valid if it records the source's size and its time in whole seconds: each version gets its own.
        self.clock += 1
        os.utime(path, (10**9 + self.clock, 10**9 + self.clock))


def was_killed(code: int) -> bool:
    return code < 0 and code != TIMEOUT


def draw(patterns: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw `count` different mutants of the files at random; returned in the order of the files."""
    files = sorted({path for pattern in patterns for path in PACKAGE.glob(pattern) if path.suffix == ".py"})
    mutants = [mutant for file in files for mutant in find_mutants(str(file.relative_to(PACKAGE)), file.read_bytes())]
    chosen = random.Random(seed).sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[index] for index in sorted(chosen)]


Change = tuple[str, str, str, str, int]
"""File, line, before, after, and which of several such changes of such a line it is, from 1 on."""


def changes_of(mutants: Iterable[Mutant]) -> dict[Mutant, Change]:
    """How equivalent.txt names each mutant; all mutants of a file are needed to tell which of several it is."""
    seen: Counter[tuple[str, str, str, str]] = Counter()
    names: dict[Mutant, Change] = {}
    for mutant in sorted(mutants, key=lambda one: (one.file, one.start)):
        change = (mutant.file, mutant.line_text, mutant.before, mutant.after)
        seen[change] += 1
        names[mutant] = (*change, seen[change])
    return names


def read_equivalent() -> set[Change]:
    """The mutants that no test can notice."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines() if EQUIVALENT.exists() else []
    entries = [line.split(" :: ") for line in lines if line.strip() and not line.startswith("#")]
    assert all(len(entry) == 5 for entry in entries), "equivalent.txt: file :: line :: before :: after :: reason"
    found: set[Change] = set()
    for file, line, before, after, _ in entries:
        change, _, places = before.partition(" @")
        found |= {(file, line, change, after, int(place)) for place in (places or "1").split(",")}
    return found


def is_equivalent(mutant: Mutant, equivalent: set[Change]) -> bool:
    """Whether a mutant is listed."""
    mutants = find_mutants(mutant.file, (PACKAGE / mutant.file).read_bytes())
    return changes_of(mutants)[mutant] in equivalent


def try_all(
    mutants: list[Mutant], slots: queue.Queue[Slot], codes: queue.Queue[tuple[Mutant, str]], is_end_to_end: bool
) -> None:
    """Try mutants whose files have the same tests; puts the verdict on each into `codes`."""
    slot = slots.get()
    try:
        reach = slot.baseline(sorted({mutant.file for mutant in mutants}))
        for mutant in mutants:
            lines = statement_lines((PACKAGE / mutant.file).read_bytes(), mutant.line)
            tests = reach.of(str(slot.source / "turnsmith" / mutant.file), lines, str(own_tests(mutant.file)))
            code = slot.test(mutant, tests) if tests else 0
            said = "SURVIVED" if code in UNNOTICED else "TIMED OUT" if code == TIMEOUT else "noticed"
            if said == "SURVIVED" and is_end_to_end and (test := end_to_end_of(mutant.file)):
                code = slot.end_to_end(mutant, test)
                said = said if code in UNNOTICED else "TIMED OUT" if code == TIMEOUT else "noticed end to end"
            codes.put((mutant, said))
    finally:
        slots.put(slot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other mutants")
    parser.add_argument("--files", nargs="+", default=list(ALL_FILES), help="patterns below src/turnsmith, or `core`")
    parser.add_argument("--end-to-end", action="store_true", help="try survivors on end-to-end tests: minutes each")
    parser.add_argument("--results", type=Path, help="a file of verdicts: what is in it is not tried again")
    parser.add_argument("--only-survivors", action="store_true", help="print no line for a mutant that was noticed")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="exit 1 if fewer are noticed")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs of pytest at a time")
    options = parser.parse_args()
    files = list(CORE_FILES) if options.files == ["core"] else options.files
    mutants = draw(files, options.count, options.seed)
    known = read_verdicts(options.results)
    left = [mutant for mutant in mutants if mutant.key not in known]
    print(f"{len(mutants)} mutants, seed {options.seed}; {len(left)} not tried yet", flush=True)
    verdicts = dict.fromkeys(VERDICTS, 0) | Counter(known[one.key] for one in mutants if one.key in known)
    try:
        for mutant, verdict in verdicts_of(left, options.jobs, is_end_to_end=options.end_to_end):
            verdicts[verdict] += 1
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps([mutant.key, verdict]) + "\n")
            if verdict == "SURVIVED" or not options.only_survivors:
                print(f"{verdict:18} {mutant}", flush=True)
    finally:
        percent = noticed_percent(verdicts)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print(f"{percent:.1f}% noticed of {sum(verdicts.values())} tried ({len(mutants)} drawn): {counts}", flush=True)
    if percent < options.at_least:
        raise SystemExit(f"Fewer mutants were noticed than --at-least {options.at_least:g}% asks for.")


def noticed_percent(verdicts: Mapping[str, int]) -> float:
    """How many of 100 mutants that a test could notice one did; 0 without mutants, because nothing was tested."""
    total = sum(count for verdict, count in verdicts.items() if verdict != "equivalent")
    noticed = sum(count for verdict, count in verdicts.items() if verdict.startswith("noticed"))
    return 100 * noticed / total if total else 0.0


def read_verdicts(file: Path | None) -> dict[str, str]:
    """What an earlier run wrote, but for survivors, which a new test may notice."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
    return {key: verdict for key, verdict in map(json.loads, lines) if verdict not in ("SURVIVED", "TIMED OUT")}


def verdicts_of(mutants: list[Mutant], jobs: int, *, is_end_to_end: bool = False) -> Iterator[tuple[Mutant, str]]:
    """Run all mutants; yields each with its verdict as it finishes."""
    equivalent = read_equivalent()
    groups: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(paths_of_tests(mutant.file), []).append(mutant)
    slots: queue.Queue[Slot] = queue.Queue()
    codes: queue.Queue[tuple[Mutant, str]] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder, ThreadPoolExecutor(jobs) as pool:
        files = sorted({mutant.file for mutant in mutants})
        started = [Slot.create(Path(folder) / str(number), files) for number in range(jobs)]
        for slot in started:
            slots.put(slot)
        try:
            runs = [pool.submit(try_all, group, slots, codes, is_end_to_end) for group in groups.values()]
            for _ in mutants:
                mutant, verdict = _next(codes, runs)
                if verdict == "SURVIVED" and is_equivalent(mutant, equivalent):
                    verdict = "equivalent"
                yield mutant, verdict
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for slot in started:
                slot.process.kill()


def _next(codes: queue.Queue[tuple[Mutant, str]], runs: list[Future[None]]) -> tuple[Mutant, str]:
    """The next result; raises what stopped a run."""
    while True:
        try:
            return codes.get(timeout=1)
        except queue.Empty:
            for run in runs:
                if run.done():
                    run.result()


if __name__ == "__main__":
    main()
