"""Turns the failure of a call to another process into one of our errors."""

from __future__ import annotations

import errno
import re
import shutil
from contextlib import suppress
from typing import Any

from turnsmith.errors import InternalError, Preempted, RecordError, TrainingFailure, TurnsmithError
from turnsmith.internal_errors import internal_error_of, is_bug
from turnsmith.records.checkpoints import saved_steps
from turnsmith.records.files import check_writable, describe_os_error
from turnsmith.records.run_folder import RunFolder

_KEPT = 2000
_LITTLE_BYTES = 2**20
_LOST = re.compile(r"actor died unexpectedly.*?class_name: (?:\S+\.)?(\w+)", re.DOTALL)
_PARTS = {
    "TaskRunner": "the task runner (which runs verl's trainer)",
    "WorkerDict": "a trainer process (which holds the model)",
    "EpisodeWorker": "a process that runs episodes",
    "TransformersServer": "a rollout server",
    "VllmServer": "a rollout server",
    "TransferQueueController": "the controller of TransferQueue",
    "SimpleStorageUnit": "a storage process of TransferQueue",
}
"""What each class of actors does."""
_OUT_OF_REACH = frozenset(
    ("ActorUnavailableError", "NodeDiedError", "ObjectLostError", "RaySystemError", "RpcError", "WorkerCrashedError")
)
"""Ray's errors by which a call fails when Ray's own processes are lost before the process that was called."""
_USED = re.compile(r"was (\S+GB) used / (\S+GB) limit")


def to_training_failure(error: Exception, folder: RunFolder, step: int) -> TurnsmithError:
    """The error of a remote call after `step`, in one sentence; its full text goes to `error.log` of the run folder."""
    log, where = folder.path / "error.log", ""
    try:
        check_writable(folder.path)
    except RecordError as lost:  # whatever else failed, it failed in a folder that another process writes to
        return lost
    cause, text = getattr(error, "cause", None), str(error)
    if not isinstance(cause, TurnsmithError) and isinstance(cause, Exception) and is_bug(cause):
        cause = internal_error_of(text, repr(cause)) or cause
    if isinstance(cause, InternalError):
        text += f"\n{cause.traceback}"
    with suppress(OSError):  # a full disk may be what stopped it
        log.write_text(text)
        where = f" (full text in {log})"
        folder.append_event("failed", content=text[-_KEPT:])
    if isinstance(cause, TurnsmithError):
        return type(cause)(f"{cause}{where}.{resume_advice(folder)}")
    lost = _LOST.search(str(error))
    if (memory := _memory(cause or error)) is not None:
        reason = memory
    elif lost is not None:
        reason = f"{_PARTS.get(lost[1], f'a process of the run ({lost[1]})')} was lost: killed, or out of memory"
    elif _OUT_OF_REACH & {kind.__name__ for kind in type(cause or error).__mro__}:
        whom = "the task runner" if cause is None else "a process of the run"
        reason = f"{whom} is out of reach; Ray itself may have been killed"
    elif _is_full(folder, cause):
        reason = f"the disk of {folder.path} is full; free some space first"
    elif isinstance(cause, OSError):
        reason = describe_os_error(cause).rstrip(".")
    else:
        reason = repr(cause) if cause is not None else str(error).strip().splitlines()[-1]
    return TrainingFailure(f"The run stopped after step {step}: {reason}{where}.{resume_advice(folder)}")


def _memory(error: Any) -> str | None:
    """What ran out of memory, if that is the cause: the machine (Ray then kills processes) or a GPU."""
    kind = type(error)
    if kind.__name__ != "OutOfMemoryError":
        return None
    if kind.__module__.startswith("torch"):
        return (
            "a GPU is out of memory; lower training.micro_batch_size or inference.gpu_memory_utilization "
            "(`turnsmith plan` forecasts memory)"
        )
    used = _USED.search(str(error))
    amount = f" ({used[1]} of {used[2]} used)" if used is not None else ""
    return (
        f"the machine is out of memory{amount}, so Ray killed processes of the run; end other programs, or lower "
        "training.micro_batch_size (`turnsmith plan` forecasts memory)"
    )


def _is_full(folder: RunFolder, cause: Any) -> bool:
    """Whether a full disk is the cause; torch does not say so, but leaves behind what it could write."""
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    with suppress(OSError):
        return shutil.disk_usage(folder.path).free < _LITTLE_BYTES
    return False


def resume_advice(folder: RunFolder) -> str:
    """A sentence on how to resume, if there is a checkpoint."""
    steps = saved_steps(folder.checkpoints_dir)
    return f" `turnsmith resume {folder.path}` continues from step {steps[0]}." if steps else ""


def record_end(error: BaseException, folder: RunFolder | None) -> str:
    """Record in the run folder, if there is one yet, how the run ended, and return it in a word or two.

    The text of a preemption is completed with how to resume. Whoever called `fit` gets the error, and shows it.
    """
    kind, told = "failed", "failed"
    if isinstance(error, KeyboardInterrupt):
        kind, told = "stopped", "stopped by Ctrl-C"
    elif isinstance(error, Preempted):
        if folder is not None:
            advice = resume_advice(folder) or f" `turnsmith resume {folder.path}` starts it again."
            error.args = (f"{error}{advice}",)
        kind = told = "preempted"
    if folder is not None:
        # A full disk, or another writer, may be what stopped it, and that error is the one to show.
        with suppress(OSError, RecordError):
            folder.append_event(kind, content=str(error))
    return told
