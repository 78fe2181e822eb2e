"""Trackers such as TensorBoard and Weights & Biases, through verl's own tracking, with our names for the metrics.

verl would open them anew for each `fit()` and log its own names. Here they are opened once by the task runner, and get
what the run's folder gets.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.records.yaml_text import parse_yaml

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""What `logging.trackers` may name. Each needs the package of the same name."""
_PREFIXES = tuple(f"{name.upper()}_" for name in TRACKERS)


def check_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker is unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"logging.trackers has {name!r}, which is unknown: use any of {', '.join(TRACKERS)}.")
        if importlib.util.find_spec(name) is None:
            raise MissingDependency(
                f"logging.trackers has {name!r}, but its package is not installed: pip install {name}, or leave it out."
            )


def tracker_variables(run_dir: str | Path) -> dict[str, str]:
    """The environment in which trackers find their place: what the user has set, else the run's folder."""
    folder = Path(run_dir) / "trackers"
    theirs = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    return {
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_DIR": str(folder),
        # So that a run which goes on after a stop goes on there as well.
        "WANDB_RUN_ID": _name_for_ever(Path(run_dir)),
        "WANDB_RESUME": "allow",
    } | theirs


def _name_for_ever(run_dir: Path) -> str:
    """A name that no other run has, the same whenever this one is looked at."""
    created = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["created"]
    return blake2b(f"{run_dir.resolve()} {created}".encode(), digest_size=8).hexdigest()


class Trackers:
    """The trackers of one run."""

    def __init__(self, config: Any, run_dir: str, variables: Mapping[str, str]) -> None:
        """Open those that `config.trainer.logger` names, and take them off it, so that verl opens none itself."""
        names, config.trainer.logger = list(config.trainer.logger), []
        self._tracking: Any = None
        if not names:
            return
        from omegaconf import OmegaConf
        from verl.utils.tracking import Tracking

        os.environ.update(variables)
        (Path(run_dir) / "trackers").mkdir(exist_ok=True)
        settings = parse_yaml((Path(run_dir) / "config.yaml").read_text(encoding="utf-8"))
        theirs: Any = OmegaConf.to_container(config, resolve=True)
        self._tracking = Tracking(
            project_name=config.trainer.project_name,
            experiment_name=config.trainer.experiment_name,
            default_backend=names,
            config={"turnsmith": settings, **theirs},
        )

    def log(self, record: Mapping[str, Any]) -> None:
        """Give one step's record to every tracker."""
        if self._tracking is not None:
            numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
            self._tracking.log(data=numbers, step=record["step"])

    def finish(self) -> None:
        """Write and send what is still waiting."""
        if self._tracking is not None:
            self._tracking.finish()
