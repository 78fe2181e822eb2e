"""What tests of records share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The path of everything that is flushed to disk from here on, and whether the checkpoint had its name by then."""
    paths: list[tuple[str, bool]] = []

    def fsync(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        named = Path(path.partition("/.writing")[0], "global_step_7").exists()
        paths.append((path, named))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths
