"""What several end-to-end tests share, because starting a run takes longest; and the parts that CI runs in parallel.

After each file, `turnsmith runs verify` checks every run folder that its tests left behind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.shaken_run import ShakenRun


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part 2/4` runs the second of four parts."""
    parser.addoption("--part", default="1/1", help="which part of the end-to-end tests to run, as 2/4")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of one part. Tests of one file stay together: they share what takes long."""
    number, parts = map(int, str(config.getoption("--part", default="1/1")).split("/"))
    files = sorted({item.path.name for item in items}, key=lambda name: zlib.crc32(name.encode()))
    mine = files[number - 1 :: parts]
    config.hook.pytest_deselected(items=[item for item in items if item.path.name not in mine])
    items[:] = [item for item in items if item.path.name in mine]


@pytest.fixture(scope="session")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> ShakenRun:
    """A run whose environment crashed, stalled and lost its process."""
    from tests.e2e.shaken_run import ShakenRun

    return ShakenRun(tmp_path_factory.mktemp("shaken"))


_verified: set[Path] = set()
"""Run folders that need no check any more."""


@pytest.fixture(scope="module", autouse=True)
def verified_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """After the tests of a file, and whatever they share, are done: the records of their runs agree."""
    yield
    problems = [
        problem for run in sorted(_run_folders(tmp_path_factory) - _verified) if (problem := verification_problem(run))
    ]
    _verified.update(_run_folders(tmp_path_factory))
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)


@pytest.fixture(autouse=True)
def damaged_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Leave out the run folders that a test makes, if it is marked with `damages_run_folders(reason)`."""
    mark = request.node.get_closest_marker("damages_run_folders")
    if mark is None:
        yield
        return
    assert mark.args, "damages_run_folders needs a reason"
    before = _run_folders(tmp_path_factory)
    yield
    _verified.update(_run_folders(tmp_path_factory) - before)


def _run_folders(tmp_path_factory: pytest.TempPathFactory) -> set[Path]:
    return {file.parent for file in tmp_path_factory.getbasetemp().rglob("run.json")}


def verification_problem(run: Path) -> str:
    """What is wrong with the records of a run, or with what training should have recorded; empty if nothing is."""
    from turnsmith.verify.run import verify_run

    found = verify_run(run)
    trained = found.steps > 0 and (run / "resume.json").is_file()
    unproved = [one.check for one in found.verdicts if one.status == "not recorded" and one.check != "checkpoints"]
    if not found.violations and not (trained and unproved):
        return ""
    return "\n".join([f"turnsmith runs verify {run}", *found.lines()])
