"""Mutation testing: change one thing in a copy of the source, and see whether a unit test notices.

    python -m tests.mutation.run --count 400 --seed 1
    python -m tests.mutation.run --count 60 --files 'algo/*' 'records/*' --only-survivors

Draws `--count` single changes (mutants) from the core files, or from `--files`. First it runs the unit tests of these
files, without the nightly ones, and notes which lines each test runs; then, for each mutant, the tests that run the
changed statement, quickest first, until one fails. Prints one line per mutant: noticed, or SURVIVED. A timeout counts
as noticed. If the tests are killed, they run a second time; killed again, they run without the mutant, to see whether
that is its doing. Mutants that change no behaviour are listed in equivalent.txt with the reason; they count as noticed
and are reported separately. The same seed draws the same mutants from the same source. With `--at-least 92` it exits 1
if fewer than 92 % are noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.forks import TIMEOUT
from tests.mutation.mutants import Mutant, find_mutants, statement_lines
from tests.mutation.reach import Reach, Reached

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "turnsmith"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")

CORE_FILES = (
    "algo/*.py",
    "rollout/*.py",
    "tools/parsing/*.py",
    "records/*.py",
    "trainer/advantages.py",
    "trainer/verl/agent_loop.py",
    "trainer/config/*.py",
    "trainer/diagnostics/*.py",
    "trainer/dataset.py",
    "env/local_host.py",
    "env/spec.py",
    "inference/chat/*.py",
    "inference/engines/continuous_batch.py",
    "inference/weights.py",
)
"""The files in which a mistake would train on the wrong thing."""

_PARSING = ("formats", "parsing", "parsing_fuzz", "parsing_json", "parsing_native", "parsing_react", "parsing_tags")
_TRAINED_ON = tuple(
    f"tests/unit/trainer/test_{name}.py"
    for name in ("segments", "recorded_advantages", "rollout_rejection", "agent_training", "episode_worker")
)
TESTS = {
    "algo/": ("tests/unit/algo",),
    "records/": (
        "tests/unit/records",
        "tests/unit/test_hostile_runs.py",
        "tests/unit/viewer/test_summary.py",
        "tests/unit/test_config_sources.py",
    ),
    "records/run_warnings.py": ("tests/unit/trainer/test_warnings.py",),
    "records/advantages.py": ("tests/unit/records", "tests/unit/viewer"),
    "rollout/": ("tests/unit/rollout", "tests/unit/trainer/test_metrics.py", "tests/unit/trainer/test_warnings.py"),
    "rollout/episode_summary.py": ("tests/unit/trainer/test_drift.py", "tests/unit/trainer/test_metrics.py"),
    "tools/parsing/": tuple(f"tests/unit/tools/test_{name}.py" for name in _PARSING),
    "trainer/advantages.py": _TRAINED_ON,
    "trainer/verl/": _TRAINED_ON,
    "trainer/dataset.py": (
        "tests/unit/trainer/test_validation.py",
        "tests/unit/trainer/test_verl_dataset.py",
        "tests/unit/cli/test_resume.py",
    ),
    "trainer/config/": (
        "tests/unit/trainer/test_to_verl.py",
        "tests/unit/test_config_fields.py",
        "tests/unit/trainer/test_verl_overrides.py",
        "tests/unit/trainer/test_layouts.py",
        "tests/unit/trainer/test_attention.py",
        "tests/unit/trainer/test_learning_rate.py",
        "tests/unit/trainer/test_preflight.py",
        "tests/unit/trainer/test_verl_keys.py",
    ),
    "trainer/diagnostics/": (
        "tests/unit/trainer/test_warnings.py",
        "tests/unit/trainer/test_warning_thresholds.py",
        "tests/unit/trainer/test_drift.py",
        "tests/unit/trainer/test_metrics.py",
        "tests/unit/rollout/test_episode_limits.py",
        "tests/unit/rollout/test_judge.py",
    ),
    "env/": ("tests/unit/env", "tests/unit/rollout/test_episode.py", "tests/unit/rollout/test_episode_clock.py"),
    "env/spec.py": ("tests/unit/env", "tests/unit/trainer/test_validation.py"),
    "inference/": ("tests/unit/inference",),
    "inference/chat/": (
        "tests/unit/inference/test_chat.py",
        "tests/unit/inference/test_chat_tools.py",
        "tests/unit/inference/test_thinking.py",
        "tests/unit/inference/test_chat_families.py",
        "tests/unit/inference/test_renderers.py",
        "tests/unit/rollout/test_episode.py",
    ),
}
"""The tests of a file, by the longest matching prefix of its path.

Besides these, `test_NAME.py` of the same package, if there is one, every unit test that imports the module by name, and
the module's doctests.
"""

UNNOTICED = (0, 5)
"""Exit codes of pytest: all tests passed; there was no test."""


GONE = -101
"""The code of a run whose process ended without telling one."""


@dataclass
class Slot:
    """A copy of the source, and a process that runs tests on it."""

    source: Path
    process: subprocess.Popen[str]
    clock: int = 0

    @classmethod
    def create(cls, folder: Path) -> Slot:
        source = folder / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(source, cls.start(source))

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

        A test that fails is left out and named: traced, on a busy machine, it may take longer than it allows.
        """
        output = self.source.parent / "reach.json"
        paths = list(dict.fromkeys(path for file in files for path in self._paths(file)))
        job = {"paths": paths, "modules": files, "source": str(self.source), "reach": str(output)}
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

    def _paths(self, file: str) -> list[str]:
        own = own_tests(file)
        paths = [own] if own.exists() else []
        if not file.startswith("trainer/verl/"):  # Doctests there would have to import verl.
            paths.append(self.source / "turnsmith" / file)
        for path in paths_of_tests(file):
            paths += sorted((ROOT / path).rglob("test_*.py")) or [ROOT / path]
        return [str(path) for path in (*paths, *importers(file))]


def was_killed(code: int) -> bool:
    return code < 0 and code != TIMEOUT


def own_tests(file: str) -> Path:
    return ROOT / "tests" / "unit" / Path(file).parent / f"test_{Path(file).stem}.py"


def importers(file: str) -> list[Path]:
    """The unit tests that name the module of a file."""
    named = re.compile(rf"\b{re.escape(module_of(file))}\b(?!\.)")
    return [test for test in sorted((ROOT / "tests" / "unit").rglob("test_*.py")) if named.search(test.read_text())]


def paths_of_tests(file: str) -> tuple[str, ...]:
    return TESTS[max((prefix for prefix in TESTS if file.startswith(prefix)), key=len)]


def module_of(file: str) -> str:
    return ".".join(("turnsmith", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


def draw(patterns: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw `count` different mutants of the files at random; returned in the order of the files."""
    files = sorted({path for pattern in patterns for path in PACKAGE.glob(pattern) if path.suffix == ".py"})
    mutants = [mutant for file in files for mutant in find_mutants(str(file.relative_to(PACKAGE)), file.read_bytes())]
    chosen = random.Random(seed).sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[index] for index in sorted(chosen)]


def read_equivalent() -> set[tuple[str, str, str, str]]:
    """File, line, before and after of the mutants that no test can notice."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines() if EQUIVALENT.exists() else []
    entries = [line.split(" :: ") for line in lines if line.strip() and not line.startswith("#")]
    assert all(len(entry) == 5 for entry in entries), "equivalent.txt: file :: line :: before :: after :: reason"
    return {(file, line, before, after) for file, line, before, after, _ in entries}


def try_all(mutants: list[Mutant], slots: queue.Queue[Slot], codes: queue.Queue[tuple[Mutant, int]]) -> None:
    """Try mutants whose files have the same tests; puts pytest's exit code of each into `codes`."""
    slot = slots.get()
    try:
        reach = slot.baseline(sorted({mutant.file for mutant in mutants}))
        for mutant in mutants:
            lines = statement_lines((PACKAGE / mutant.file).read_bytes(), mutant.line)
            tests = reach.of(str(slot.source / "turnsmith" / mutant.file), lines, str(own_tests(mutant.file)))
            codes.put((mutant, slot.test(mutant, tests) if tests else 0))
    finally:
        slots.put(slot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other mutants")
    parser.add_argument("--files", nargs="+", default=list(CORE_FILES), help="patterns below src/turnsmith")
    parser.add_argument("--only-survivors", action="store_true", help="print no line for a mutant that was noticed")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT", help="exit 1 if fewer are noticed")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs of pytest at a time")
    options = parser.parse_args()
    mutants = draw(options.files, options.count, options.seed)
    print(f"{len(mutants)} mutants, seed {options.seed}", flush=True)
    verdicts = {"noticed": 0, "noticed (timeout)": 0, "equivalent": 0, "SURVIVED": 0}
    try:
        for mutant, verdict in verdicts_of(mutants, options.jobs):
            verdicts[verdict] += 1
            if verdict == "SURVIVED" or not options.only_survivors:
                print(f"{verdict:18} {mutant}", flush=True)
    finally:
        percent = noticed_percent(verdicts)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print(f"{percent:.1f}% noticed of {sum(verdicts.values())} tried ({len(mutants)} drawn): {counts}", flush=True)
    if percent < options.at_least:
        raise SystemExit(f"Fewer mutants were noticed than --at-least {options.at_least:g}% asks for.")


def noticed_percent(verdicts: Mapping[str, int]) -> float:
    """How many of 100 mutants a test noticed or no test could; 0 without mutants, because nothing was tested."""
    total = sum(verdicts.values())
    return 100 * (total - verdicts["SURVIVED"]) / total if total else 0.0


def verdicts_of(mutants: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Run all mutants; yields each with its verdict as it finishes."""
    equivalent = read_equivalent()
    groups: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault(paths_of_tests(mutant.file), []).append(mutant)
    slots: queue.Queue[Slot] = queue.Queue()
    codes: queue.Queue[tuple[Mutant, int]] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder, ThreadPoolExecutor(jobs) as pool:
        started = [Slot.create(Path(folder) / str(number)) for number in range(jobs)]
        for slot in started:
            slots.put(slot)
        try:
            runs = [pool.submit(try_all, group, slots, codes) for group in groups.values()]
            for _ in mutants:
                mutant, code = _next(codes, runs)
                verdict = "SURVIVED" if code in UNNOTICED else "noticed (timeout)" if code == TIMEOUT else "noticed"
                if code in UNNOTICED and (mutant.file, mutant.line_text, mutant.before, mutant.after) in equivalent:
                    verdict = "equivalent"
                yield mutant, verdict
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for slot in started:
                slot.process.kill()


def _next(codes: queue.Queue[tuple[Mutant, int]], runs: list[Future[None]]) -> tuple[Mutant, int]:
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
