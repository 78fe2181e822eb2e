"""Which lines of the source each test runs, and how long it takes: a mutant is tried on those tests only."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest


@dataclass(frozen=True)
class Reached:
    """A test, and the lines of the source that it runs, by file."""

    name: str
    path: str
    seconds: float
    lines: dict[str, list[int]]

    @property
    def limit(self) -> int:
        """Seconds after which it hangs: on a mutant, it is not traced as it was when it was timed."""
        return 30 + int(4 * self.seconds)


@dataclass(frozen=True)
class Reach:
    """What a `Recorder` wrote."""

    tests: list[Reached]
    failed: list[str] = field(default_factory=list)
    """Tests that failed without any mutant, and so cannot notice one; they are not among `tests`."""

    @classmethod
    def read(cls, output: Path) -> Reach:
        content = json.loads(output.read_text())
        return cls([Reached(*row) for row in content["tests"]], content["failed"])

    def of(self, file: str, lines: Iterable[int] | None, own: str = "") -> list[Reached]:
        """The tests that run one of these lines, quickest first; None: those that run any line of the file.

        Also all tests in `own`, because a process that a test starts is not followed. All tests there are if none runs
        these lines: what runs when a module is imported may be used elsewhere.
        """
        wanted = None if lines is None else set(lines)

        def runs_it(test: Reached) -> bool:
            return file in test.lines and (wanted is None or bool(wanted & set(test.lines[file])))

        is_run = any(map(runs_it, self.tests))
        found = [test for test in self.tests if not is_run or test.path == own or runs_it(test)]
        return sorted(found, key=lambda test: test.seconds)


class Recorder:
    """A plugin of pytest that writes the lines that each test runs of some files, and all modules imported.

    What a fixture runs that several tests share counts for all tests of the file.
    """

    def __init__(self, files: Iterable[str], output: str) -> None:
        self.files = frozenset(files)
        self.output = Path(output)
        self.lines: set[tuple[str, int]] = set()
        self.shared: dict[Path, set[tuple[str, int]]] = {}
        self.tests: list[tuple[pytest.Item, float, set[tuple[str, int]]]] = []
        self.failed: set[str] = set()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.trace_line if frame.f_code.co_filename in self.files else None

    def trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace_line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.lines, start = set(), time.monotonic()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.tests.append((item, time.monotonic() - start, self.lines))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, object, object]:
        before, self.lines = self.lines, set()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self.shared.setdefault(request._pyfuncitem.path, set()).update(self.lines)
            self.lines |= before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        rows = [
            (item.nodeid, str(item.path), seconds, _by_file(lines | self.shared.get(item.path, set())))
            for item, seconds, lines in self.tests
            if item.nodeid not in self.failed
        ]
        content = {"tests": rows, "failed": sorted(self.failed), "modules": list(sys.modules)}
        self.output.write_text(json.dumps(content))


class Only:
    """A plugin of pytest that keeps the tests with these names, in this order, and kills pytest if one takes too long.

    Args:
        seconds: How long each of them may take, by its name.
    """

    def __init__(self, seconds: dict[str, int]) -> None:
        self.seconds = seconds
        self.place = {name: place for place, name in enumerate(seconds)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        signal.alarm(self.seconds[item.nodeid])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(kept, key=lambda item: self.place[item.nodeid])


def _by_file(lines: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    files: dict[str, list[int]] = {}
    for file, line in lines:
        files.setdefault(file, []).append(line)
    return files
