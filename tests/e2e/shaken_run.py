"""One real run for the tests of faults: steps without a fault, the same with many, and one where nothing works."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from tests.e2e.marked_processes import processes_with
from tests.e2e.shaky import Shaky, hits
from turnsmith import ConfigStore, RayPPOTrainer, RunFolder
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import TrainingFailure

STEPS = 4
"""Steps that are made twice, besides the first one."""
SETTINGS = (
    "model.model_name=tiny inference.max_tokens=6 training.batch_size=16 training.group_size=4 "
    "training.learning_rate=1e-2 training.steps_per_epoch=1 environment.isolation=process "
    "environment.isolation_workers=2 environment.isolation_memory_gib=1 environment.isolation_processes=64 "
    "environment.call_seconds=1.5"
)
PATIENT = "failures.environment=retry:50 failures.worker=retry:50"
"""Far more attempts than usual, for far more faults than usual: none may be left to see in what is learnt."""


class ShakenRun:
    """What was seen of it."""

    def __init__(self, folder: Path, policy: str = PATIENT) -> None:
        self.faults = folder / "faults"
        self.faults.write_text("")
        self.mark = uuid.uuid4().hex
        settings = [*f"{SETTINGS} {policy}".split(), f"environment.faults={self.faults}"]
        settings += [f"checkpoint.output_dir={folder}"]
        # A checkpoint only at the end of each `fit`: whatever else is saved is saved because something failed.
        config = apply_overrides(ConfigStore(), [*settings, "checkpoint.save_interval=1000"])
        before = os.environ.get("TURNSMITH_TEST_MARK")
        os.environ["TURNSMITH_TEST_MARK"] = self.mark
        trainer = RayPPOTrainer(config, Shaky)
        try:
            self._train(trainer, folder)
        finally:
            trainer.cleanup()
            os.environ.pop("TURNSMITH_TEST_MARK")
            os.environ |= {"TURNSMITH_TEST_MARK": before} if before else {}
        self.left_over = [one.cmdline() for one in processes_with(self.mark) if one.pid != os.getpid()]
        history = trainer.metrics_history
        self.clean, self.faulty = history[: STEPS + 1], history[STEPS + 1 : 2 * STEPS + 1]
        self.last_step = int(history[-1]["step"])
        assert trainer.run is not None
        self.run: RunFolder = trainer.run
        self.ledger: list[dict[str, Any]] = self.run.read_ledger()
        made = {step["step"] for step in self.faulty}
        self.faulty_ledger = [line for line in self.ledger if line["step"] in made][-len(self.faulty) :]

    def hits(self, way: str) -> int:
        """How often the environment failed in a way."""
        return hits(self.faults, way)

    def _train(self, trainer: RayPPOTrainer, folder: Path) -> None:
        trainer.fit(1, 1)
        trainer.save_checkpoint(folder / "first")
        trainer.fit(1, STEPS)
        trainer.load_checkpoint(folder / "first")
        self.faults.write_text("0.1")
        trainer.fit(1, STEPS)
        self.faults.write_text("")

        def break_everything() -> None:
            made = len(trainer.metrics_history)
            while len(trainer.metrics_history) == made:
                time.sleep(0.01)
            self.faults.write_text("1.0 raise")

        threading.Thread(target=break_everything, daemon=True).start()
        try:
            trainer.fit(1, 100)
        except TrainingFailure as error:
            self.told = str(error)


def same_metrics(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of metrics that differ, but for times and what is counted of failures."""
    names = [name for name in one.keys() | other.keys() if not name.startswith(("time/", "perf/", "failures/"))]
    return sorted(name for name in names if one.get(name) != other.get(name))
