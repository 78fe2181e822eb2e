"""The dataset that verl reads, behind the loader that verl reads it with: its checkpoint holds the stream."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from turnsmith.trainer.dataset import Curriculum, CustomEnvironmentDataset
from turnsmith.trainer.verl.dataset import EpisodeDataset, set_curriculum


@pytest.fixture(autouse=True)
def no_curriculum() -> Iterator[None]:
    yield
    set_curriculum(None)


def loader(dataset: CustomEnvironmentDataset, folder: Path, curriculum: Curriculum | None = None) -> Any:
    dataset.save(folder, seed=0)
    set_curriculum(curriculum)
    return StatefulDataLoader(EpisodeDataset(str(folder / "starts.json")), batch_size=2, collate_fn=list)


def seen(batch: list[dict[str, Any]]) -> list[Any]:
    return [(row["index"], row["start_seed"], json.loads(row["start_task"] or "null")) for row in batch]


def test_row_i_starts_group_i(tmp_path: Path) -> None:
    rows = iter(loader(CustomEnvironmentDataset(tasks=[{"a": 1}, {"a": 2}, {"a": 3}]), tmp_path))
    assert seen(next(rows)) == [(0, 0, {"a": 1}), (1, 1, {"a": 2})]
    assert seen(next(rows)) == [(2, 2, {"a": 3}), (3, 3, {"a": 1})]


def test_a_stream_that_has_been_read_goes_on(tmp_path: Path) -> None:
    dataset = CustomEnvironmentDataset(seeds=range(10, 20))
    dataset.load_state_dict({"position": 4})
    assert seen(next(iter(loader(dataset, tmp_path)))) == [(4, 14, None), (5, 15, None)]


def test_the_checkpoint_of_the_loader_brings_the_curriculum_back(tmp_path: Path) -> None:
    def curriculum(index: int, history: Any) -> dict[str, Any]:
        return {"task": {"level": round(sum(group.reward for group in history), 2)}}

    def train(made: Any, steps: int) -> list[Any]:
        rows, told = iter(made), []
        for _ in range(steps):
            batch = seen(next(rows))
            told.append(batch)
            made.dataset.record({str(index): [0.1, 0.3 * index] for index, _, _ in reversed(batch)})
        return told

    whole = train(loader(CustomEnvironmentDataset(curriculum=curriculum), tmp_path, curriculum), 5)
    stopped = loader(CustomEnvironmentDataset(curriculum=curriculum), tmp_path, curriculum)
    begun = train(stopped, 2)
    state = stopped.state_dict()
    resumed = loader(CustomEnvironmentDataset(curriculum=curriculum), tmp_path, curriculum)
    resumed.load_state_dict(state)
    assert begun + train(resumed, 3) == whole
    assert whole[-1][0][2]["level"] > 0


def test_a_task_costs_the_process_that_reads_it_eight_bytes(tmp_path: Path) -> None:
    lines = tmp_path / "starts.jsonl"
    with lines.open("w") as file:
        file.writelines(f'{{"task": {{"question": "what is {number} and one?"}}}}\n' for number in range(100_000))
    about = {"source": "rows", "seed": 0, "shuffle": False, "state": {"position": 0}}
    (tmp_path / "starts.json").write_text(json.dumps(about))
    tracemalloc.start()
    made = EpisodeDataset(str(tmp_path / "starts.json"))
    row = made[99_999]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert json.loads(row["start_task"]) == {"question": "what is 99999 and one?"}
    assert kept < 1.6e6  # twice that, for what an array may keep in reserve
