"""Seams of verl's tracking, which feeds TensorBoard and its like."""

from __future__ import annotations

import contextlib
import io
import tempfile
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


@seam("Trackers in trainer/verl/trackers.py")
def tensorboard_gets_our_metrics() -> None:
    """TensorBoard should write the numbers of our records, by our names, into the run's folder"""
    from omegaconf import OmegaConf
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    from turnsmith.records.run_folder import RunFolder
    from turnsmith.trainer.verl.trackers import Trackers, tracker_variables

    with tempfile.TemporaryDirectory() as parent, contextlib.redirect_stdout(io.StringIO()):
        run = RunFolder.create(parent, "watched")
        run.write_config({"training": {"seed": 3}})
        names = {"logger": ["tensorboard"], "project_name": "turnsmith", "experiment_name": "watched"}
        config = OmegaConf.create({"trainer": names})
        trackers = Trackers(config, str(run.path), tracker_variables(run.path))
        same(config.trainer.logger, [])
        trackers.log({"step": 4, "epoch": 0, "reward/mean": 0.25, "note": "not a number"})
        trackers.finish()
        (file,) = (run.path / "trackers" / "tensorboard").iterdir()
        values = [
            (event.step, value.tag, value)
            for event in EventFileLoader(str(file)).Load()
            for value in event.summary.value
        ]
    same(
        [(step, tag, value.tensor.float_val[0]) for step, tag, value in values],
        [(4, "step", 4.0), (4, "epoch", 0.0), (4, "reward/mean", 0.25)],
    )
