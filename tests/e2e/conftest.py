"""What several end-to-end tests share, because starting a run takes longest; and the parts that CI runs in parallel."""

from __future__ import annotations

import zlib
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
