"""Advantages of a step on disk: what was written comes back, by episode."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from turnsmith.records.advantages import StepAdvantages, read_advantages, write_advantages
from turnsmith.records.run_folder import RunFolder

STEP = StepAdvantages(
    advantages={"e1": [0.5, 0.0, -1.0], "e2": [0.25]},
    values={"e1": [0.1, 0.0, 0.2], "e2": [0.3]},
    rewards={"e1": [0.0, 0.0, 1.0]},
    trainer_log_probs={"e1": [-0.5, 0.0, -0.25], "e2": [-1.5]},
)


def as_rounded(step: StepAdvantages) -> list[dict[str, list[float]]]:
    return [
        {episode: [round(number, 6) for number in numbers] for episode, numbers in column.items()}
        for column in (step.advantages, step.values, step.rewards, step.trainer_log_probs)
    ]


def test_advantages_values_and_rewards_come_back(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    file = write_advantages(run, 12, STEP)
    assert file == run.path / "trained" / "step-00000012.parquet"
    assert as_rounded(read_advantages(run, 12)) == as_rounded(STEP)
    assert as_rounded(read_advantages(str(run.path), 12)) == as_rounded(STEP)


def test_only_the_wanted_episodes_are_read(tmp_path: Path) -> None:
    write_advantages(tmp_path, 1, STEP)
    assert list(read_advantages(tmp_path, 1, ["e2", "e9"]).advantages) == ["e2"]
    assert read_advantages(tmp_path, 1, []) == StepAdvantages()


def test_the_same_step_is_replaced_and_columns_are_float32(tmp_path: Path) -> None:
    write_advantages(tmp_path, 1, STEP)
    file = write_advantages(tmp_path, 1, StepAdvantages(advantages={"e3": [1.0]}))
    assert read_advantages(tmp_path, 1) == StepAdvantages(advantages={"e3": [1.0]})
    schema = pq.read_schema(file)
    assert schema.names == ["episode_id", "advantages", "values", "rewards", "trainer_log_probs"]
    assert {str(schema.field(name).type) for name in schema.names[1:]} == {"list<element: float>"}


def test_a_file_of_a_version_without_log_probs_is_read(tmp_path: Path) -> None:
    file = write_advantages(tmp_path, 1, STEP)
    pq.write_table(pq.read_table(file).drop_columns(["trainer_log_probs"]), file)
    earlier = read_advantages(tmp_path, 1)
    assert earlier.trainer_log_probs == {}
    assert list(earlier.advantages) == ["e1", "e2"]
