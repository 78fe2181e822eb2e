"""What a user is told when a call to another process fails because Ray's own processes are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ray import exceptions

from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.driver.ending import to_training_failure

TRACE = "ray::TaskRunner.train_until()\n  File ..."


def told(error: Exception, folder: Path) -> str:
    return str(to_training_failure(error, RunFolder.create(str(folder), name="run"), 3))


def test_a_task_runner_that_ray_cannot_reach(tmp_path: Path) -> None:
    error = exceptions.ActorUnavailableError("Socket closed rpc_code: 14", b"0" * 16)
    assert "stopped after step 3: the task runner is out of reach" in told(error, tmp_path)


@pytest.mark.parametrize(
    "cause",
    [
        exceptions.ActorUnavailableError("Socket closed rpc_code: 14", b"0" * 16),
        exceptions.OwnerDiedError("ab", None, ""),
        exceptions.NodeDiedError("gone"),
        exceptions.RaySystemError("System error: broken pipe"),
        exceptions.WorkerCrashedError(),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_a_process_that_the_task_runner_cannot_reach(cause: Exception, tmp_path: Path) -> None:
    error = exceptions.RayTaskError("train_until", TRACE, cause).as_instanceof_cause()
    text = told(error, tmp_path)
    assert "stopped after step 3: a process of the run is out of reach; Ray itself may have been killed" in text
    assert "Error(" not in text


OUT_OF_MEMORY = """3 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.1, \
ID: e0c7) was 22.39GB used / 23.54GB limit (0.951107)
OOM kill reason: Memory usage 24022499328B exceeded threshold of 24011053056B (95.0% of 25274793984B limit)"""


@pytest.mark.parametrize("is_inside", [False, True], ids=["the task runner", "a process that it called"])
def test_a_machine_without_memory(is_inside: bool, tmp_path: Path) -> None:
    error: Exception = exceptions.OutOfMemoryError(OUT_OF_MEMORY)
    if is_inside:
        error = exceptions.RayTaskError("train_until", TRACE, error).as_instanceof_cause()
    text = told(error, tmp_path)
    assert (
        "step 3: the machine is out of memory (22.39GB of 23.54GB used), so Ray killed processes of the run; " in text
    )
    assert "Error(" not in text
    assert len(text) < 400


def test_a_gpu_without_memory(tmp_path: Path) -> None:
    cause = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of ...")
    text = told(exceptions.RayTaskError("train_until", TRACE, cause).as_instanceof_cause(), tmp_path)
    assert "stopped after step 3: a GPU is out of memory; lower training.micro_batch_tokens or " in text


def test_an_error_of_any_other_kind_is_told_as_it_is(tmp_path: Path) -> None:
    error = exceptions.RayTaskError("train_until", TRACE, ValueError("no such key")).as_instanceof_cause()
    assert "stopped after step 3: ValueError('no such key')" in told(error, tmp_path)
