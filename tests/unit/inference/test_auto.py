"""`auto` has one meaning, whoever asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnsmith.inference import auto


@pytest.mark.parametrize(
    ("files", "visible", "device"),
    [
        ([], None, "cpu"),
        (["nvidia0", "nvidia1"], None, "cuda"),
        (["nvidia3"], None, "cuda"),  # a Kubernetes pod may have any one of a node's GPUs
        (["nvidiactl", "nvidia-uvm"], None, "cpu"),  # the driver is there, and no GPU
        (["dxg", "libcuda.so.1"], None, "cuda"),  # WSL2
        (["dxg"], None, "cpu"),  # WSL2 with a GPU of another maker
        (["kfd", "dri"], None, "cpu"),  # an AMD GPU: our extras have CUDA builds
        (["nvidia0"], "", "cpu"),
        (["nvidia0"], "-1", "cpu"),
        (["nvidia0"], "0", "cuda"),
    ],
)
def test_the_device_is_a_gpu_where_this_process_can_see_one(
    files: list[str], visible: str | None, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(auto, "Path", lambda path: tmp_path / path.removeprefix("/dev").lstrip("/"))
    monkeypatch.setattr(auto.ctypes, "CDLL", lambda library: (tmp_path / library).stat())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert auto.auto_device() == device
