"""Real runs for `benchmarks/schedules.py`: an environment whose step takes a heavy-tailed time, in each schedule.

Run, in the project's folder: python -m benchmarks.heavy_tail FOLDER [--schedules sync colocate_async] [--steps 25]
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.schedule_runs import WARM_UP

from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer, RunFolder
from turnsmith.config_sources import apply_overrides

BATCH = 16
SETTINGS = (
    f"model.model_name=tiny inference.max_tokens=6 training.batch_size={BATCH} training.group_size=4 "
    "training.learning_rate=1e-3 training.num_epochs=1 training.max_staleness=1 "
    "checkpoint.save_interval=0 environment.isolation=thread"
)


class HeavyTail(BaseEnvironment):
    """Ends after 1 to 5 turns; each step waits for a log-normal time, by default 0.1 s in the median, 1 s at 1 %."""

    async def reset(self, seed: int = 0) -> str:
        """Ask. The times are independent of the seed, which the episodes of a group share."""
        self.chance = random.Random()
        self.turns = self.chance.randint(1, 5)
        return "Say a"

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Wait, and pay for the share of the answer that is the letter."""
        median, sigma = float(self.config.get("median", 0.1)), float(self.config.get("sigma", 1.0))
        await asyncio.sleep(median * self.chance.lognormvariate(0.0, sigma))
        self.step_count += 1
        return "Once more", action.count("a") / max(len(action), 1), self.step_count >= self.turns, {}


def train(folder: Path, schedule: str, steps: int) -> Path:
    """Train in one schedule; returns the run folder."""
    own = [f"training.schedule={schedule}", f"training.steps_per_epoch={steps}", f"checkpoint.output_dir={folder}"]
    if schedule == "separate_async":
        own.append("ray.rollout_gpus_per_node=1")
    config = apply_overrides(ConfigStore(), [*SETTINGS.split(), *own, f"checkpoint.run_name={schedule}"])
    trainer = RayPPOTrainer(config, HeavyTail)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    return trainer.run.path


def episodes_a_second(run: Path) -> float:
    """How many episodes were trained on in each second, once the run had got going."""
    records = RunFolder.open(run).read_metrics()[WARM_UP:]
    return BATCH * len(records) / sum(record["time/step"] for record in records)


def main() -> None:
    """Train in each schedule, one after another, and compare each with the first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schedules", nargs="+", default=["sync", "colocate_async"])
    parser.add_argument("--steps", type=int, default=25)
    results.add_option(parser)
    options = parser.parse_args()
    first = None
    found: dict[str, float] = {"steps": options.steps}
    for schedule in options.schedules:
        run = train(options.folder, schedule, options.steps)
        speed = episodes_a_second(run)
        first = first or speed
        found |= {schedule: speed, f"{schedule}_over_first": speed / first}
        print(f"{schedule}: {speed:.2f} episodes a second, {speed / first:.2f} times the first; {run}", flush=True)
    results.record("heavy_tail", found, is_wanted=options.json)


if __name__ == "__main__":
    main()
