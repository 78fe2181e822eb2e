"""A checkpoint of four ranks goes on with two of them and with one, and that of one with four, critic included."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.records.checkpoints import open_checkpoint, read_state
from turnsmith.trainer.checkpoints.hugging_face import joined, read_shards, saved_ranks, shard_path

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@contextmanager
def trainer_of(ranks: int, folder: Path) -> Generator[RayPPOTrainer]:
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens = 4
    config.training.adv_estimator = "gae"
    config.training.batch_size, config.training.group_size = 16, 4
    config.training.learning_rate, config.training.warmup_steps = 1e-2, 5
    config.checkpoint.output_dir = str(folder)
    config.ray.gpus_per_node = ranks
    trainer = RayPPOTrainer(config, ThreeLetters)
    try:
        yield trainer
    finally:
        trainer.cleanup()


def contents(checkpoint: Path) -> dict[str, Any]:
    """Everything that training goes on from, unsharded."""
    found: dict[str, Any] = {"state": read_state(checkpoint)}
    for part in (checkpoint / "actor", checkpoint / "critic"):
        models, optimizers = read_shards(part), read_shards(part, "optim")
        for name in models[0]:
            found[f"{part.name} {name}"] = joined(name, [one[name] for one in models])
        for number, state in optimizers[0]["state"].items():
            for name in state:
                parts = [one["state"][number][name] for one in optimizers]
                found[f"{part.name} optimizer {number} {name}"] = joined(name, parts)
        found[f"{part.name} groups"] = optimizers[0]["param_groups"]
        extra = shard_path(part, saved_ranks(part), 0, "extra_state")
        found[f"{part.name} schedule"] = torch.load(extra, weights_only=False)["lr_scheduler"]
    return found


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def unlike(one: Path, other: Path) -> list[str]:
    before, after = contents(one), contents(other)
    assert before.keys() == after.keys()
    assert {name.rpartition(" ")[2] for name in before} >= {"step", "exp_avg", "exp_avg_sq", "schedule"}
    return [name for name in before if not same(before[name], after[name])]


def next_step(trainer: RayPPOTrainer) -> tuple[dict[str, Any], set[tuple[str, int, str]]]:
    """The metrics of one more step, and where its episodes started."""
    record = trainer.fit(num_epochs=1, num_iters_per_epoch=1)[-1]
    assert trainer.run is not None
    assert record["step"] == 3
    return record, {(one.episode_id, one.seed, one.states[0]) for one in read_episodes(trainer.run, step=3)}


def test_four_ranks_go_on_as_two_one_and_four(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with trainer_of(4, tmp_path) as four:
        four.fit(num_epochs=1, num_iters_per_epoch=2)
        assert four.run is not None
        first = open_checkpoint(four.run.checkpoints_dir / "global_step_2").path
        steps = {4: next_step(four)}
    with trainer_of(2, tmp_path) as two:
        assert two.load_checkpoint(first) == 2
        assert "written by 4 ranks and is loaded by 2" in "".join(capfd.readouterr())
        of_two = open_checkpoint(two.save_checkpoint(tmp_path / "two")).path
        assert (saved_ranks(first / "actor"), saved_ranks(of_two / "critic")) == (4, 2)
        assert unlike(first, of_two) == []
        steps[2] = next_step(two)
    with trainer_of(1, tmp_path) as one:
        one.load_checkpoint(first)
        of_one = one.save_checkpoint(tmp_path / "one")
        assert unlike(first, of_one) == []
        steps[1] = next_step(one)
    with trainer_of(4, tmp_path) as again:
        again.load_checkpoint(of_one)
        assert unlike(first, again.save_checkpoint(tmp_path / "again")) == []
    for ranks in (2, 1):
        (record, starts), (expected, expected_starts) = steps[ranks], steps[4]
        assert starts == expected_starts
        assert record["learning_rate"] == expected["learning_rate"] < 1e-2  # of the warm-up
        assert record["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
