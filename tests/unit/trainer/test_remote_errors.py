"""What a user is told when a call to another process fails because Ray's own processes are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import exceptions

from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.driver.remote_errors import to_training_failure

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


def test_an_error_of_any_other_kind_is_told_as_it_is(tmp_path: Path) -> None:
    error = exceptions.RayTaskError("train_until", TRACE, ValueError("no such key")).as_instanceof_cause()
    assert "stopped after step 3: ValueError('no such key')" in told(error, tmp_path)
