"""The failure of a call to another process, told as one of our errors."""

from __future__ import annotations

import re
from contextlib import suppress

from turnsmith.errors import TrainingFailure, TurnsmithError
from turnsmith.records.checkpoints import saved_steps
from turnsmith.records.run_folder import RunFolder

_KEPT = 2000
_LOST = re.compile(r"actor died unexpectedly.*?class_name: (?:\S+\.)?(\w+)", re.DOTALL)
_PARTS = {
    "TaskRunner": "the process that leads the training",
    "WorkerDict": "a process that holds the model and trains it",
    "EpisodeWorker": "a process that runs episodes",
    "TransformersServer": "a rollout server",
    "vLLMHttpServer": "a rollout server",
    "TransferQueueController": "the queue between episodes and training",
    "SimpleStorageUnit": "the store between episodes and training",
}
"""What a class of actors is, in words."""


def to_training_failure(error: Exception, folder: RunFolder, step: int) -> TurnsmithError:
    """The error of a remote call after `step`, in one sentence; its full text goes to the run's folder."""
    log = folder.path / "error.log"
    log.write_text(str(error))
    folder.append_event("failed", content=str(error)[-_KEPT:])
    cause = getattr(error, "cause", None)
    if isinstance(cause, TurnsmithError):
        return type(cause)(f"{cause} (full text in {log}).{resume_advice(folder)}")
    lost = _LOST.search(str(error))
    if lost is not None:
        reason = f"{_PARTS.get(lost[1], f'a process of the run ({lost[1]})')} was lost: killed, or out of memory"
    elif type(error).__name__ == "ActorUnavailableError":
        reason = "the process that leads the training is out of reach; Ray itself may have been killed"
    else:
        reason = repr(cause) if cause is not None else str(error).strip().splitlines()[-1]
    return TrainingFailure(f"The run stopped after step {step}: {reason} (full text in {log}).{resume_advice(folder)}")


def resume_advice(folder: RunFolder) -> str:
    """A sentence on how to go on, if there is a checkpoint to go on from."""
    steps = saved_steps(folder.checkpoints_dir)
    return f" `turnsmith resume {folder.path}` goes on from step {steps[0]}." if steps else ""


def record_end(error: BaseException, folder: RunFolder | None) -> None:
    """Keep in the run's folder, if there is one yet, how the run ended."""
    if folder is not None:
        kind = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(OSError):  # A full disk may be what stopped it; that error is the one to show.
            folder.append_event(kind, content=str(error))
