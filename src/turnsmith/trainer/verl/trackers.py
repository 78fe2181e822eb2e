"""Experiment trackers such as TensorBoard and Weights & Biases: verl's tracking, with our names for the metrics.

verl would open them anew for each `fit()` and log its own names. Here the task runner opens them once, and they get
what the run folder gets. A tracker of the user's own, `logging.trackers=[module:name]`, gets the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, get_args

from turnsmith.config import Tracker
from turnsmith.config_sources import load, to_dict
from turnsmith.importing import import_object

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
    """The trackers of one run."""

    def __init__(self, config: Any, run_dir: str, variables: Mapping[str, str]) -> None:
        """Open all trackers of the run, and remove verl's from its config, so that verl does not open them itself."""
        names, config.trainer.logger = list(config.trainer.logger), []
        settings = load(Path(run_dir) / "config.yaml")
        own = [name for name in settings.logging.trackers if ":" in name]
        self._tracking: Any = None
        if names or own:
            os.environ.update(variables)
            (Path(run_dir) / "trackers").mkdir(exist_ok=True)
        self._own: list[UserTracker] = [import_object(name)(run_dir, to_dict(settings)) for name in own]
        if not names:
            return
        from omegaconf import OmegaConf
        from verl.utils.tracking import Tracking

        verl_settings: Any = OmegaConf.to_container(config, resolve=True)
        self._tracking = Tracking(
            project_name=config.trainer.project_name,
            experiment_name=config.trainer.experiment_name,
            default_backend=names,
            config={"turnsmith": to_dict(settings), **verl_settings},
        )

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the metrics of one step to every tracker."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
        if self._tracking is not None:
            self._tracking.log(data=numbers, step=record["step"])
        for tracker in self._own:
            tracker.log(numbers)

    def finish(self) -> None:
        """Write and send what is still buffered."""
        for tracker in (self._tracking, *self._own):
            if tracker is not None:
                tracker.finish()
