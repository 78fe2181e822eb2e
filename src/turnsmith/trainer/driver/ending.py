"""How a run ends: signals that ask the user's process to stop it, and failures of its processes as one of our errors.

Schedulers announce that a machine will be taken away with SIGTERM (Kubernetes, spot machines, `scancel`) or, under
Slurm, with the signal of `--signal`, by custom SIGUSR1.
"""

from __future__ import annotations

import errno
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

from turnsmith.errors import (
    InternalError,
    Preempted,
    RecordError,
    TrainingFailure,
    TurnsmithError,
    UpdateOutOfMemory,
    internal_error_of,
    is_bug,
)
from turnsmith.records.checkpoints import saved_steps
from turnsmith.records.files import check_writable, describe_os_error
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind

_PREEMPTING = (signal.SIGTERM, signal.SIGUSR1)


class Interrupt:
    """Inside this context a signal to stop is only noted, and `check` raises it where stopping is safe.

    Python raises KeyboardInterrupt wherever the main thread happens to be. Inside Ray that may be a destructor, where
    the exception is printed and lost, and the run would go on. A second Ctrl-C raises at once, as usual.

    Args:
        preempted: Whether the run is stopping already because of a preemption: further ones then change nothing.
    """

    def __init__(self, *, preempted: bool = False) -> None:
        self._noted: int | None = None
        self._preempted = preempted
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = _set_handlers(self._note, signal.SIGINT, *_PREEMPTING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt for the Ctrl-C that was noted, or Preempted for another signal."""
        if self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if self._noted is not None:
            raise _preempted_by(self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._noted == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGINT or not self._preempted:
            self._noted = number


@contextmanager
def preemptible() -> Iterator[None]:
    """Raise Preempted in this block, or the function it decorates, when the process is asked to stop.

    Example:
        >>> with preemptible():
        ...     signal.raise_signal(signal.SIGUSR1)
        Traceback (most recent call last):
        turnsmith.errors.Preempted: Preempted by SIGUSR1.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_preemption()
        raise _preempted_by(number)

    before = _set_handlers(stop, *_PREEMPTING)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_preemption() -> None:
    """Ignore further signals of schedulers: the run is ending, and its processes must be stopped in order."""
    _set_handlers(signal.SIG_IGN, *_PREEMPTING)


@contextmanager
def starting_ray() -> Iterator[None]:
    """Start Ray in this block: its processes will not take SIGUSR1, and SIGTERM keeps the handler that it has.

    Slurm can send a signal to every process of a job, and SIGUSR1 ends those that do not know it. Blocked, it stays
    blocked in whatever they start; ignoring it here for a while could lose it.
    """
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        if callable(handler):  # `ray.init` sets one of its own
            _set_handlers(handler, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _preempted_by(number: int) -> Preempted:
    return Preempted(f"Preempted by {signal.Signals(number).name}.")


def _set_handlers(handler: Any, *numbers: int) -> dict[int, Any]:
    """Set a handler and return those before; only the main thread may, in others nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in numbers}


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
TRAINING_PHASES = frozenset(("old_log_prob", "values", "update_critic", "update_actor"))
"""The phases of a run in which a GPU holds micro-batches."""
_USED = re.compile(r"was (\S+GB) used / (\S+GB) limit")


def to_training_failure(error: Exception, folder: RunFolder, step: int, phase: str = "") -> TurnsmithError:
    """The error of a remote call after `step`, in one sentence; its full text goes to `error.log` of the run folder."""
    log, where = folder.path / "error.log", ""
    try:
        check_writable(folder.path)
    except RecordError as lost:  # another process writes to this folder, and that explains any other failure
        return lost
    cause, text = getattr(error, "cause", None), str(error)
    if not isinstance(cause, TurnsmithError) and isinstance(cause, Exception) and is_bug(cause):
        cause = internal_error_of(text, repr(cause)) or cause
    if isinstance(cause, InternalError):
        text += f"\n{cause.traceback}"
    with suppress(OSError):  # a full disk may be what stopped it
        log.write_text(text)
        where = f" (full text in {log})"
        folder.append_event(EventKind.FAILED, content=text[-_KEPT:])
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
    kind = UpdateOutOfMemory if _is_of_gpu(cause or error) and phase in TRAINING_PHASES else TrainingFailure
    return kind(f"The run stopped after step {step}: {reason}{where}.{resume_advice(folder)}")


def _is_of_gpu(error: Any) -> bool:
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


def _memory(error: Any) -> str | None:
    """What ran out of memory, if that is the cause: the machine (Ray then kills processes) or a GPU."""
    kind = type(error)
    if kind.__name__ != "OutOfMemoryError":
        return None
    if _is_of_gpu(error):
        return (
            "a GPU is out of memory; lower training.micro_batch_tokens or inference.gpu_memory_utilization, or set "
            "training.offload (`turnsmith check --plan` forecasts memory)"
        )
    used = _USED.search(str(error))
    amount = f" ({used[1]} of {used[2]} used)" if used is not None else ""
    return (
        f"the machine is out of memory{amount}, so Ray killed processes of the run; end other programs, or lower "
        "training.micro_batch_size (`turnsmith check --plan` forecasts memory)"
    )


def _is_full(folder: RunFolder, cause: Any) -> bool:
    """Whether a full disk is the cause. torch does not say so, but the disk is still full."""
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
    kind, told = EventKind.FAILED, "failed"
    if isinstance(error, KeyboardInterrupt):
        kind, told = EventKind.STOPPED, "stopped by Ctrl-C"
    elif isinstance(error, Preempted):
        if folder is not None:
            advice = resume_advice(folder) or f" `turnsmith resume {folder.path}` starts it again."
            error.args = (f"{error}{advice}",)
        kind = told = EventKind.PREEMPTED
    if folder is not None:
        # A full disk, or another writer, may be what stopped it, and that error is the one to show.
        with suppress(OSError, RecordError):
            folder.append_event(kind, content=str(error))
    return told
