"""Seams of verl's tracking, which feeds TensorBoard and its like."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from turnsmith.trainer.verl.seams.base import holds, parameters, same, seam


@seam("Trackers in trainer/verl/trackers.py")
def tracking_takes_our_trackers() -> None:
    """Tracking should support every tracker of ours, and log(data, step) and finish()"""
    from verl.utils.tracking import Tracking

    from turnsmith.config import Tracker

    same(sorted(set(get_args(Tracker)) - set(Tracking.supported_backend)), [])
    same(parameters(Tracking.__init__), ["project_name", "experiment_name", "default_backend", "config"])
    same(parameters(Tracking.log)[:2], ["data", "step"])
    holds(callable(Tracking.finish))


@seam("tracker_variables in trainer/verl/trackers.py")
def tracking_looks_for_its_places_in_the_environment() -> None:
    """Tracking should look for TENSORBOARD_DIR and MLFLOW_TRACKING_URI in the environment"""
    from verl.utils import tracking

    text = Path(tracking.__file__).read_text()
    holds('os.environ.get("TENSORBOARD_DIR"' in text and 'os.environ.get("MLFLOW_TRACKING_URI"' in text)


@seam("_RaiseLastAttempt in trainer/verl/trackers.py")
def the_last_failed_attempt_at_mlflow_is_logged() -> None:
    """Tracking should log each failed attempt at MLflow with its number, the number of attempts, and the error"""
    from verl.utils import tracking

    text = Path(tracking.__file__).read_text()
    holds('failed: %s", _mlflow_attempt, MLFLOW_MAX_ATTEMPTS, e' in text)
    holds("args = (_attempt + 1, MLFLOW_MAX_ATTEMPTS, error)" in text)
