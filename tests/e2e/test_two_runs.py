"""Two users' runs on one Ray cluster at the same time: each has a queue of its own, and trains on its own episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.marked_processes import run_program
from turnsmith import RunFolder, read_episodes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def test_two_runs_share_a_cluster(tmp_path: Path) -> None:
    assert run_program("tests.e2e.two_runs", tmp_path, timeout=700) == [0, 0]
    began: list[tuple[float, float]] = []
    for name in ("one", "other"):
        run = RunFolder.open(tmp_path / name)
        assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
        assert len(read_episodes(run.path)) == 24
        assert all(balance["trained"] == 8 for balance in run.read_ledger())
        times = [float(event["time"]) for event in run.read_events()]
        began.append((times[0], times[-1]))
    # They did run at the same time.
    assert max(first for first, _ in began) < min(last for _, last in began)
