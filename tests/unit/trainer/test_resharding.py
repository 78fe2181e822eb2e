"""A checkpoint of some ranks is loaded by fewer and by more of them, with equal weights and optimizer state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.trainer.resharding_ranks import SAVED

from turnsmith.trainer.checkpoints.hugging_face import joined, read_shards

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four processes saved as four, two, one, four and three ranks."""
    made = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.unit.trainer.resharding_ranks", str(made)]
    environment = os.environ | {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return made


def unsharded(folder: Path, name: str, rank: int = 0) -> dict[str, Any]:
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=True)


@pytest.mark.parametrize("name", [name for name in SAVED if name != "four"])
def test_weights_optimizer_and_learning_rate_are_equal(folder: Path, name: str) -> None:
    before, after = unsharded(folder, "four"), unsharded(folder, name)
    assert before.keys() == after.keys()
    assert sum(key.endswith(" exp_avg_sq") for key in before) == 21
    assert all(torch.equal(before[key], after[key]) for key in before.keys() - {"drawn", "groups"})
    assert before["groups"] == after["groups"]


def test_as_many_ranks_as_before_also_get_their_random_numbers_back(folder: Path) -> None:
    for rank in range(4):
        before, after = unsharded(folder, "four", rank)["drawn"], unsharded(folder, "four_again", rank)["drawn"]
        assert torch.equal(before, after)


def test_other_ranks_draw_numbers_of_their_own(folder: Path) -> None:
    drawn = {tuple(unsharded(folder, "from_one", rank)["drawn"].tolist()) for rank in range(4)}
    assert len(drawn) == 4
    assert tuple(unsharded(folder, "one")["drawn"].tolist()) not in drawn


@pytest.mark.parametrize("name", ["four", "two", "one", "replicas", "three"])
def test_the_reader_of_files_puts_the_same_weights_together(folder: Path, name: str) -> None:
    shards, whole = read_shards(folder / name), unsharded(folder, "four")
    for weight in shards[0]:
        parts = [shard[weight] for shard in shards]
        assert torch.equal(joined(weight, parts), whole[weight])
        if whole[weight].ndim == 2:
            assert torch.equal(joined(weight, parts, (3, 2), (2, 5)), whole[weight][2:5, 5:7])
