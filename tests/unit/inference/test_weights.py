"""Weights for an update, as a folder or as tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from turnsmith.errors import TrainingFailure
from turnsmith.inference import weights


def test_tensors_are_written_to_files_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_FILE_BYTES", 8)  # two float32
    tensors = {name: torch.full((1,), float(value)) for value, name in enumerate("abcde")}
    with weights.as_folder(tensors.items()) as folder:
        files = sorted(Path(folder).iterdir())
        assert [file.name for file in files] == ["00000.safetensors", "00001.safetensors", "00002.safetensors"]
        read = dict(weights.read_weights(folder))
    assert read == tensors
    assert not Path(folder).exists()


def test_tensors_that_fill_a_file_exactly_leave_no_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_FILE_BYTES", 8)
    with weights.as_folder([("a", torch.zeros(2)), ("b", torch.zeros(3))]) as folder:
        assert len(list(Path(folder).iterdir())) == 2


def test_tensors_are_in_shared_memory_if_there_is_any() -> None:
    assert Path("/dev/shm").is_dir()
    with weights.as_folder([("a", torch.zeros(2))]) as folder:
        assert folder.startswith("/dev/shm/")


def test_views_and_shared_tensors_can_be_written() -> None:
    table = torch.arange(6.0).reshape(2, 3)
    with weights.as_folder([("a", table.T), ("b", table), ("c", table)]) as folder:
        read = dict(weights.read_weights(folder))
    assert torch.equal(read["a"], table.T)
    assert torch.equal(read["b"], read["c"])


def test_a_folder_is_used_as_it_is(tiny_folder: str) -> None:
    with weights.as_folder(Path(tiny_folder)) as folder:
        assert folder == tiny_folder
    assert Path(folder).exists()


class Stacked(torch.nn.Module):
    """As in vLLM: one parameter is made of two weights, and the head may be the embedding."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 4, bias=False)
        self.gate_up, self.ids = torch.nn.Linear(2, 4, bias=False), torch.nn.Buffer(torch.arange(3))
        if tied:
            self.head.weight = self.embed.weight

    @torch.no_grad()
    def load(self, *names: str) -> None:
        if "gate" in names:
            self.gate_up.weight[:2] = 1.0
        if "up" in names:
            self.gate_up.weight[2:] = 1.0
        for name in {"embed", "head"} & set(names):
            getattr(self, name).weight.fill_(float("inf"))


@pytest.mark.parametrize(
    ("tied", "names", "missing"),
    [
        (True, ["embed", "gate", "up"], []),
        (False, ["embed", "head", "gate", "up"], []),
        (False, ["embed", "gate", "up"], ["head.weight (100 %)"]),
        (True, ["embed", "gate"], ["gate_up.weight (50 %)"]),
    ],
)
def test_what_no_weight_was_loaded_into_is_found(tied: bool, names: list[str], missing: list[str]) -> None:
    model = Stacked(tied=tied)
    weights.forget_weights(model)
    model.load(*names)
    assert weights.never_loaded(model) == missing
    if not missing:
        weights.check_arrived("vLLM", missing)
        return
    with pytest.raises(TrainingFailure, match=rf"nothing came for {re.escape(missing[0])}\."):
        weights.check_arrived("vLLM", missing)
