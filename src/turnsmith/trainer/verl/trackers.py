"""Experiment trackers such as TensorBoard and Weights & Biases: verl's tracking, with our names for the metrics.

verl would open them for each `fit()` and log its own names. Here the task runner opens them once, and they get the same
metrics as the run folder. So does a tracker of the user's own, `logging.trackers=[module:name]`.

Each tracker has a thread of its own, which opens it, logs to it and ends it: MLflow and Trackio know their run only in
the thread that opened it, and Ray calls the task runner in several. Training never waits for a tracker nor ends
because of one.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, get_args

from turnsmith.config import ConfigStore, Tracker
from turnsmith.config_sources import to_dict
from turnsmith.importing import import_object

_MOST_WAITING = 256
_FINISH_SECONDS = 30.0
_PREFIXES = tuple(f"{name.upper()}_" for name in get_args(Tracker))


class UserTracker(Protocol):
    """A tracker of the user's own: a class that is called with the run's folder and its settings."""

    def log(self, record: Mapping[str, float]) -> None:
        """Take the metrics of one step; `record["step"]` is its number."""
        ...

    def finish(self) -> None:
        """Write and send what is still buffered."""
        ...


def tracker_variables(run_dir: str | Path) -> dict[str, str]:
    """Environment variables that tell trackers where to write: the user's own, else the run folder."""
    folder = Path(run_dir) / "trackers"
    users = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    return {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_DIR": str(folder),
        # A resumed run continues as the same run there.
        "WANDB_RUN_ID": _run_id(Path(run_dir)),
        "WANDB_RESUME": "allow",
    } | users


def _run_id(run_dir: Path) -> str:
    """An id that no other run has, and that never changes."""
    created = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["created"]
    return blake2b(f"{run_dir.resolve()} {created}".encode(), digest_size=8).hexdigest()


class Trackers:
    """The trackers of one run.

    Args:
        config: verl's settings; its trackers are removed from them, so that verl does not open them itself.
        settings: The run's.
        run_dir: The run folder.
        variables: What `tracker_variables` returned in the user's process.
        warn: Called with a sentence when a tracker fails or does not keep up.
    """

    def __init__(
        self,
        config: Any,
        settings: ConfigStore,
        run_dir: str,
        variables: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        names, config.trainer.logger = list(config.trainer.logger), []
        own = [name for name in settings.logging.trackers if ":" in name]
        if names or own:
            os.environ.update(variables)
            (Path(run_dir) / "trackers").mkdir(exist_ok=True)
        openers: dict[str, Callable[[], UserTracker]] = {
            name: lambda name=name: import_object(name)(run_dir, to_dict(settings)) for name in own
        }
        if names:
            from omegaconf import OmegaConf

            verl_settings: Any = OmegaConf.to_container(config, resolve=True)
            shown = {"turnsmith": to_dict(settings), **verl_settings}
            openers |= {name: lambda name=name: _VerlTracker(name, shown) for name in names}
        self._threads = [_TrackerThread(name, opener, warn) for name, opener in openers.items()]

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the metrics of one step to every tracker."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        for thread in self._threads:
            thread.log(numbers)

    def finish(self) -> None:
        """Write and send what is still buffered; waits for a limited time."""
        deadline = time.monotonic() + _FINISH_SECONDS
        for thread in self._threads:
            thread.ask_to_finish()
        for thread in self._threads:
            thread.wait(deadline)


class _TrackerThread:
    """One tracker, in a thread of its own. It is left out after its first error."""

    def __init__(self, name: str, opener: Callable[[], UserTracker], warn: Callable[[str], None]) -> None:
        self._name, self._opener, self._warn = name, opener, warn
        self._records: queue.SimpleQueue[Mapping[str, float] | None] = queue.SimpleQueue()
        self._is_behind = False
        self._thread = threading.Thread(target=self._work, name=f"turnsmith-tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, record: Mapping[str, float]) -> None:
        """Queue the metrics of one step. This tracker loses them if it is too far behind."""
        if not self._thread.is_alive():
            return
        if self._records.qsize() < _MOST_WAITING:
            self._records.put(record)
        elif not self._is_behind:
            self._is_behind = True
            self._warn(
                f"The tracker {self._name} is {_MOST_WAITING} steps behind, and misses steps from now on. "
                "metrics.jsonl in the run folder has them all."
            )

    def ask_to_finish(self) -> None:
        """End after the waiting records; see `wait`."""
        self._records.put(None)

    def wait(self, deadline: float) -> None:
        """Wait until it has ended, at most until `deadline` (`time.monotonic()`)."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn(
                f"The tracker {self._name} did not finish within {_FINISH_SECONDS:.0f} seconds: it may miss the last "
                "steps. metrics.jsonl in the run folder has them all."
            )

    def _work(self) -> None:
        doing = "opened"
        try:
            tracker = self._opener()
            doing = "written to"
            while (record := self._records.get()) is not None:
                tracker.log(record)
            doing = "finished"
            tracker.finish()
        except BaseException as error:  # sys.exit() in a tracker must end the tracker, not the run
            reason = f"{type(error).__name__}: {error}".rstrip(": ").replace("\n", " ")
            self._warn(
                f"The tracker {self._name} could not be {doing}, and the run goes on without it ({reason}). "
                "metrics.jsonl in the run folder has all metrics."
            )


class _VerlTracker:
    """One of verl's trackers, with the interface of a user's own."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        from verl.utils import tracking

        if name == "mlflow":
            tracking.logger.addHandler(_RaiseLastAttempt())
        trainer = settings["trainer"]
        self._tracking = tracking.Tracking(trainer["project_name"], trainer["experiment_name"], [name], settings)

    def log(self, record: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        self._tracking.log(data=record, step=record["step"])

    def finish(self) -> None:
        """End the tracker's run."""
        self._tracking.finish()


class _RaiseLastAttempt(logging.Handler):
    """Raise the error that stopped MLflow: verl tries three times, and then only logs it."""

    def emit(self, record: logging.LogRecord) -> None:
        match record.args:
            case (int(attempt), int(attempts), Exception() as error) if attempt == attempts:
                raise error
            case _:
                pass
