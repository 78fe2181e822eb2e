"""Weights for an update, as a folder or as tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
