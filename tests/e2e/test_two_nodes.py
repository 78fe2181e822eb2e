"""Two logical nodes of one Ray cluster on this machine, joined by its address: a rank and a rollout server on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.marked_processes import run_program
from turnsmith import RunFolder, read_episodes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def test_two_nodes_train_together(tmp_path: Path) -> None:
    found = run_program("tests.e2e.two_nodes", tmp_path, timeout=400)
    # Each node has one GPU, and none is left: there is a rank on both.
    assert (found["all"], found["free"]) == (2, 0)
    assert found["same"].startswith("2 nodes have the same versions of")
    assert found["differ"].startswith("cachetools is 0.1 on ")
    assert found["differ"].endswith(" here. Install the same versions on every node.")
    run = RunFolder.open(tmp_path / "two-nodes")
    records = run.read_metrics()
    assert [record["step"] for record in records] == [1, 2]
    assert all(record["grad_norm"] > 0 for record in records)
    assert max(record["rollout_diff/max"] for record in records) < 1e-5
    episodes = read_episodes(run.path, step=2)
    assert len(episodes) == 32
    assert {turn.weights_version for episode in episodes for turn in episode.turns} == {1}
    assert tracked(run.path) == {record["step"]: pytest.approx(record["reward/mean"]) for record in records}


def tracked(run: Path) -> dict[int, float]:
    """The mean reward of each step, as TensorBoard has it."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (run / "trackers" / "tensorboard").iterdir()
    events = EventFileLoader(str(file)).Load()
    values = [(event.step, value) for event in events for value in event.summary.value]
    return {step: value.tensor.float_val[0] for step, value in values if value.tag == "reward/mean"}
