"""`TrainerCallback`: a user's own code that follows a run in the process that called `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TrainerCallback:
    """Called while a run goes on, in the process and thread that called `fit`; override the methods that you need.

    Each gets the `RayPPOTrainer` that calls it. The run goes on meanwhile, so by the time a method is called it may be
    a little further. What a method raises stops the run, and `fit` raises it again. To send metrics elsewhere, also
    from the command line, name a tracker of your own in `logging.trackers`.

    Example:
        >>> from turnsmith import ConfigStore, RayPPOTrainer, TrainerCallback
        >>> class StopAtGoal(TrainerCallback):
        ...     def on_evaluate(self, trainer, metrics):
        ...         if metrics["success/mean"] >= 0.9:
        ...             trainer.stop()
        >>> trainer = RayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber", callbacks=[StopAtGoal()])
    """

    def on_step_end(self, trainer: Any, metrics: dict[str, Any]) -> None:
        """An optimizer step is done; its metrics are those of `trainer.metrics_history`."""

    def on_evaluate(self, trainer: Any, metrics: dict[str, Any]) -> None:
        """An evaluation on held-out starts is done, also the one before training; see `trainer.evaluations`."""

    def on_save(self, trainer: Any, folder: Path) -> None:
        """A checkpoint was saved in this folder."""

    def on_train_end(self, trainer: Any) -> None:
        """`fit` is about to return; not called if the run failed."""
