"""What several end-to-end tests share, because starting a run takes longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.e2e.shaken_run import ShakenRun


@pytest.fixture(scope="session")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> ShakenRun:
    """A run whose environment crashed, stalled and lost its process."""
    from tests.e2e.shaken_run import ShakenRun

    return ShakenRun(tmp_path_factory.mktemp("shaken"))
