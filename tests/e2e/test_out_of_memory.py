"""A GPU that is out of memory in an update, raised by force in a rank: once the run goes on with half the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.out_of_memory import OutOfMemory
from tests.e2e.same_runs import differences
from turnsmith import ConfigStore, RayPPOTrainer, RunFolder, TrainingFailure

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

TOKENS = 400


def train(folder: Path, name: str, where: str, *, most: int, before: int = 0, tokens: int = TOKENS) -> RunFolder:
    """A run of three steps on the forward pass of a GPU, with a checkpoint after each."""
    config = ConfigStore()
    config.model.model_name, config.model.device, config.model.attn_implementation = "tiny", "cpu", "packed_sdpa"
    config.checkpoint.output_dir, config.checkpoint.run_name = str(folder), name
    config.training.batch_size, config.training.group_size, config.training.learning_rate = 8, 4, 1e-2
    config.training.num_epochs, config.training.steps_per_epoch = 3, 1
    config.training.micro_batch_tokens = tokens
    config.inference.max_prompt_tokens, config.inference.max_episode_tokens = 64, 128
    config.inference.max_tokens, config.environment.isolation = 8, "thread"
    for setting, value in {"where": where, "most": most, "before": before}.items():
        setattr(config.environment, setting, value)
    trainer = RayPPOTrainer(config, OutOfMemory)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return RunFolder.open(folder / name)


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_the_run_goes_on_once_and_equals_one_that_began_with_smaller_micro_batches(tmp_path: Path, where: str) -> None:
    smaller = train(tmp_path, "smaller", where, most=TOKENS, tokens=TOKENS // 2)
    out = train(tmp_path, "out", where, most=TOKENS // 2)
    assert differences(out, smaller) == []
    said = [str(event["content"]) for event in out.read_events() if event["kind"] == "warning"]
    assert [one for one in said if "out of memory in step 1. The run goes on after step 0 with" in one]


def test_it_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    out = train(tmp_path, "out", "backward", most=TOKENS // 2, before=2)
    assert [row["step"] for row in out.read_metrics()] == [1, 2, 3]
    said = [str(event["content"]) for event in out.read_events() if event["kind"] == "warning"]
    assert [one for one in said if "out of memory in step 3. The run goes on after step 2 with" in one]


def test_the_second_time_it_stops_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailure, match=r"a GPU is out of memory; lower training\.micro_batch_tokens"):
        train(tmp_path, "out", "forward", most=0)
