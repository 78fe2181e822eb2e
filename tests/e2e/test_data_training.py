"""Rows of data train without an environment: verl's Parquet file, TRL's dataset and reward function, unchanged."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from tests.e2e.trained_on import assert_advantages_are_ours
from turnsmith import ConfigStore, QuestionAnswer, RayPPOTrainer, read_episodes
from turnsmith.cli.main import main
from turnsmith.config_sources import apply_overrides
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
SETTINGS = (
    "inference.max_tokens=8 training.batch_size=16 training.group_size=8 training.learning_rate=1e-2 "
    "training.steps_per_epoch=2 training.num_epochs=1 checkpoint.save_interval=0"
)


def letters(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """A scoring function as verl calls it."""
    assert (data_source, extra_info["index"] in range(8)) == ("letters", True)
    return sum(letter.islower() for letter in solution_str) / max(len(solution_str), 1)


def test_a_parquet_file_of_verl(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"Say {number} letters."}],
            "ability": "letters",
            "reward_model": {"style": "rule", "ground_truth": str(number)},
            "extra_info": {"split": "train", "index": number},
        }
        for number in range(8)
    ]
    Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    reward = f"{Path(__file__).absolute()}:letters"
    command = ["train", "--data", str(tmp_path / "train.parquet"), "--reward", reward, "--model", "tiny"]
    where = [f"checkpoint.output_dir={tmp_path}", "checkpoint.run_name=run"]
    assert main([*command, *SETTINGS.split(), *where]) == 0
    run = RunFolder.open(tmp_path / "run")
    assert all(record["grad_norm"] > 0 for record in run.read_metrics())
    assert all(record["rollout_diff/max"] < 1e-5 for record in run.read_metrics())
    asked = [episode.messages[0]["content"] for episode in read_episodes(run, step=1)]
    assert sorted(asked) == ["Say 0 letters."] * 8 + ["Say 1 letters."] * 8


def share_of_letters(completions: list[Any], solution: list[str], **kwargs: Any) -> list[float]:
    """A reward function as TRL calls it."""
    contents = [completion[0]["content"] for completion in completions]
    return [sum(one in solution[0] for one in content) / max(len(content), 1) for content in contents]


def test_a_dataset_and_a_reward_function_of_trl(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say letters."}]
    dataset = Dataset.from_list([{"prompt": prompt, "solution": "abcdefghijklmnopqrstuvwxyz"}] * 4)
    config = apply_overrides(ConfigStore(), ["model.model_name=tiny", *SETTINGS.split()])
    config.checkpoint.output_dir = str(tmp_path)
    trainer = RayPPOTrainer(config, partial(QuestionAnswer, reward=share_of_letters), dataset=dataset)
    try:
        records = trainer.fit()
    finally:
        trainer.cleanup()
    assert all(record["grad_norm"] > 0 for record in records)
    for step in (1, 2):
        assert_advantages_are_ours(trainer, step)
    assert trainer.run is not None
    first = next(iter(read_episodes(trainer.run, step=1)))
    assert [message["role"] for message in first.messages[:3]] == ["system", "user", "assistant"]
