"""The stream of starts: every source, one order for one seed, and a stream that goes on exactly where it stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnsmith.env.examples import SupportDesk
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.trainer import task_file
from turnsmith.trainer.dataset import ENDLESS, REMEMBERED, CustomEnvironmentDataset, FinishedGroup

TASKS = [{"question": f"{number} + {number}", "answer": 2 * number} for number in range(5)]


def as_jsonl(folder: Path) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    return path


def as_parquet(folder: Path) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "tasks.parquet"
    pq.write_table(pa.Table.from_pylist(TASKS), path, row_group_size=2)
    return str(path)


def as_hugging_face(folder: Path) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(TASKS)


def as_json(folder: Path) -> Path:
    (folder / "tasks.json").write_text(json.dumps(TASKS))
    return folder / "tasks.json"


def as_saved_dataset(folder: Path) -> Path:
    as_hugging_face(folder).save_to_disk(folder / "saved")
    return folder / "saved"


SOURCES = [lambda _: TASKS, lambda _: iter(TASKS), as_jsonl, as_json, as_parquet, as_hugging_face, as_saved_dataset]


@pytest.mark.parametrize("made", SOURCES)
def test_tasks_come_from_a_list_an_iterator_a_file_or_hugging_face(made: Callable[[Path], Any], tmp_path: Path) -> None:
    dataset = CustomEnvironmentDataset(tasks=made(tmp_path))
    assert len(dataset) == 5
    assert [dataset.start(index)["task"] for index in range(7)] == [*TASKS, *TASKS[:2]]
    assert [dataset.start(index)["seed"] for index in (0, 6)] == [0, 6]


def test_all_columns_of_a_csv_file_are_text(tmp_path: Path) -> None:
    (tmp_path / "tasks.csv").write_text('\ufeffquestion,answer\n"1 + 1,\nor so?",2\n')
    dataset = CustomEnvironmentDataset(tasks=tmp_path / "tasks.csv")
    assert [dataset.start(index)["task"] for index in range(len(dataset))] == [
        {"question": "1 + 1,\nor so?", "answer": "2"}
    ]


def test_without_a_source_only_the_seeds_differ() -> None:
    dataset = CustomEnvironmentDataset(seed=7)
    assert len(dataset) == ENDLESS
    assert dataset.start(3) == {"index": 3, "seed": 10, "task": None}


def test_seeds_may_be_given() -> None:
    dataset = CustomEnvironmentDataset(seeds=range(100, 103))
    assert [dataset.start(index)["seed"] for index in range(4)] == [100, 101, 102, 100]


def test_shuffling_is_an_order_of_the_seed_and_of_the_pass() -> None:
    def order(seed: int, first: int) -> list[int]:
        dataset = CustomEnvironmentDataset(seeds=range(50), shuffle=True, seed=seed)
        return [dataset.start(index)["seed"] for index in range(first, first + 50)]

    assert sorted(order(1, 0)) == list(range(50))
    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(*one)) for one in ((1, 0), (1, 50), (2, 0))}) == 3


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_stream_goes_on_exactly_where_it_stopped(shuffle: bool) -> None:
    def stream() -> CustomEnvironmentDataset:
        return CustomEnvironmentDataset(tasks=TASKS, shuffle=shuffle, seed=3)

    stopped = stream()
    rows = iter(stopped)
    begun = [next(rows) for _ in range(3)]
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = stream()
    resumed.load_state_dict(state)
    assert begun + list(resumed) == list(stream())
    resumed.load_state_dict({"position": 8})
    assert [row["index"] for row in resumed] == [8, 9]


def harder(index: int, history: tuple[FinishedGroup, ...]) -> dict[str, Any]:
    """A level more for every group that went well."""
    return {"task": {"level": 1 + sum(group.reward > 0.5 for group in history)}}


def test_a_curriculum_sees_how_earlier_groups_went() -> None:
    dataset = CustomEnvironmentDataset(curriculum=harder, seed=10)
    assert [dataset.start(index)["task"] for index in range(3)] == [{"level": 1}] * 3
    dataset.record({2: 0.9, 0: 1.0, 1: None, 77: 1.0})  # all episodes of group 1 failed; 77 is not ours
    assert [(group.index, group.seed, group.reward) for group in dataset.history] == [(0, 10, 1.0), (2, 12, 0.9)]
    state = json.loads(json.dumps(dataset.state_dict()))
    resumed = CustomEnvironmentDataset(curriculum=harder, seed=10)
    resumed.load_state_dict(state)
    assert resumed.start(3) == dataset.start(3) == {"index": 3, "seed": 13, "task": {"level": 3}}
    assert CustomEnvironmentDataset(curriculum=lambda index, history: {"seed": 5}).start(0)["seed"] == 5
    both = {"seed": 5, "task": {"level": 2}}
    assert CustomEnvironmentDataset(curriculum=lambda index, history: both).start(0) == {"index": 0, **both}


def test_a_curriculum_is_told_of_the_last_groups_only() -> None:
    dataset = CustomEnvironmentDataset(curriculum=lambda index, history: {"seed": len(history)})
    indices = range(REMEMBERED + 100)
    for index in indices:
        dataset.start(index)
    dataset.record(dict.fromkeys(indices, 0.0))
    assert dataset.start(9999)["seed"] == REMEMBERED


class Questions:
    """A PyTorch map-style dataset: it has a length, and no IndexError says where it ends."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": index, "input_ids": np.arange(index + 1)}


class Stream:
    """An iterable-style one, whose length is all that says where it ends."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[dict[str, int]]:
        return ({"number": number} for number in count())


def test_a_pytorch_dataset_has_as_many_rows_as_its_length() -> None:
    tasks = [{"question": 0, "input_ids": [0]}, {"question": 1, "input_ids": [0, 1]}]
    assert [row["task"] for row in CustomEnvironmentDataset(tasks=Questions())] == tasks
    assert [row["task"] for row in CustomEnvironmentDataset(tasks=Stream(3))] == [{"number": n} for n in range(3)]


def test_a_source_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_file, "_MOST_WITHOUT_LENGTH", 1000)
    assert len(CustomEnvironmentDataset(tasks=({"number": number} for number in range(1000)))) == 1000
    for endless in ({"tasks": ({"number": number} for number in count())}, {"seeds": count()}):
        with pytest.raises(ConfigError, match=r"no length, and no end after 1,000 rows: give it a __len__, or pass"):
            CustomEnvironmentDataset(**endless)


def test_mistakes_are_told_in_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"a": 1}\n{"a": \n')
    for tasks, told in (
        (Path(__file__), r"ends in \.jsonl, \.json, \.csv, \.parquet, or the folder of a saved"),
        (tmp_path, "is not a saved Hugging Face dataset"),
        (tmp_path / "none.jsonl", "There is no dataset"),
        (broken, "Line 2 of .* is not JSON"),
        ([{"a": 1}, "b"], "Row 1 of the dataset is 'b', not a mapping"),
        ({"train": TASKS}, "pass one split"),
        ([{"a": object()}], "Row 0 of the dataset has no JSON form"),
        ([], "The dataset is empty"),
    ):
        with pytest.raises(ConfigError, match=told):
            CustomEnvironmentDataset(tasks=tasks)
    with pytest.raises(ConfigError, match="one source"):
        CustomEnvironmentDataset(tasks=TASKS, seeds=[1])
    for returned in ({"a": 1}, {"task": {}, "a": 1}, ["task"]):
        with pytest.raises(ConfigError, match=rf"curriculum returned {re.escape(str(returned))} for start 0"):
            CustomEnvironmentDataset(curriculum=lambda index, history, returned=returned: returned).start(0)
    with pytest.raises(IndexError, match="from 0 on"):
        CustomEnvironmentDataset().start(-1)


def test_the_row_shows_the_prompt_that_episodes_open_with(tiny_folder: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    row = CustomEnvironmentDataset(GuessNumber(), tokenizer)[0]
    assert row["state"] == "Guess my number, from 1 to 16."
    assert row["state"] in row["prompt"]
    assert tokenizer.decode(row["input_ids"]) == row["prompt"]
    assert row["attention_mask"] == [1] * len(row["input_ids"])
    assert "refund" in CustomEnvironmentDataset(SupportDesk, tokenizer)[0]["prompt"], "the tools are part of it"

    class Broken(GuessNumber):
        def reset(self, seed: int = 0) -> str:
            raise RuntimeError("no board")

    with pytest.raises(EnvironmentFailure, match="no board"):
        CustomEnvironmentDataset(Broken, tokenizer)[0]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_folder_holds_the_stream(shuffle: bool, tmp_path: Path) -> None:
    dataset = CustomEnvironmentDataset(tasks=TASKS, shuffle=shuffle)
    dataset.load_state_dict({"position": 2})
    dataset.save(tmp_path, seed=4)
    loaded = CustomEnvironmentDataset.load(tmp_path)
    assert loaded.position == 2
    same = CustomEnvironmentDataset(tasks=TASKS, shuffle=shuffle, seed=4)
    assert [loaded.start(index) for index in range(12)] == [same.start(index) for index in range(12)]
    with pytest.raises(ConfigError, match="comes from rows: pass the same kind of dataset"):
        CustomEnvironmentDataset.load(tmp_path, harder)
    CustomEnvironmentDataset(curriculum=harder, seed=1).save(tmp_path, seed=4)
    assert CustomEnvironmentDataset.load(tmp_path, harder).start(1)["seed"] == 2
    with pytest.raises(ConfigError, match="comes from curriculum"):
        CustomEnvironmentDataset.load(tmp_path)
