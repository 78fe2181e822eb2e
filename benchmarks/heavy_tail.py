"""An environment whose step takes a heavy-tailed time, trained in two schedules: what each makes and learns.

Prints episodes a second of each schedule, and how the reward of a turn, averaged over all episodes trained on, differs
from that of the first, with a 95 % interval over the seeds. Exits with 1 if a schedule learned less from its episodes
than the first, beyond that interval. `benchmarks/schedules.py` compares its simulation with these runs.

Run, in the project's folder: python -m benchmarks.heavy_tail FOLDER [--schedules sync separate_async] [--seeds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.schedule_runs import WARM_UP

from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer, RunFolder
from turnsmith.config_sources import apply_overrides
from turnsmith.rollout.evaluation.intervals import Estimate, estimate_mean

BATCH = 16
SETTINGS = (
    f"model.model_name=tiny inference.max_tokens=6 training.batch_size={BATCH} training.group_size=4 "
    "training.learning_rate=1e-2 training.num_epochs=1 training.max_staleness=1 "
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


def train(folder: Path, schedule: str, steps: int, seed: int) -> Path:
    """Train in one schedule; returns the run folder, which is called after it, and after the seed if that is not 0."""
    name = f"{schedule}-{seed}" if seed else schedule
    own = [f"training.schedule={schedule}", f"training.steps_per_epoch={steps}", f"training.seed={seed}"]
    own += [f"checkpoint.output_dir={folder}", f"checkpoint.run_name={name}"]
    if schedule == "separate_async":
        own.append("ray.rollout_gpus_per_node=1")
    trainer = RayPPOTrainer(apply_overrides(ConfigStore(), [*SETTINGS.split(), *own]), HeavyTail)
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


def learned(run: Path) -> float:
    """The mean reward of a turn over all episodes trained on: the area below the learning curve by episodes.

    Of a turn, because the number of turns is drawn, and would be most of the difference between two runs.
    """
    records = RunFolder.open(run).read_metrics()
    return sum(record["reward/mean"] for record in records) / sum(record["turns/mean"] for record in records)


def main() -> int:
    """Train in each schedule with each seed, one after another, and compare each with the first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schedules", nargs="+", default=["sync", "separate_async"])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=1)
    results.add_option(parser)
    options = parser.parse_args()
    rewards: dict[str, list[float]] = {schedule: [] for schedule in options.schedules}
    for seed in range(options.seeds):
        found: dict[str, float] = {"steps": options.steps, "episodes_a_step": BATCH, "seed": seed}
        for schedule in options.schedules:
            run = train(options.folder, schedule, options.steps, seed)
            reward = learned(run)
            rewards[schedule].append(reward)
            found |= {schedule: episodes_a_second(run), f"{schedule}_reward": reward}
            found[f"{schedule}_over_first"] = found[schedule] / found[options.schedules[0]]
            print(
                f"seed {seed}, {schedule}: {found[schedule]:.2f} episodes a second, "
                f"{found[f'{schedule}_over_first']:.2f} times the first; reward a turn {reward:.3f}; {run}",
                flush=True,
            )
        results.record("heavy_tail", found, is_wanted=options.json)
    differences = compare(rewards)
    first, *others = options.schedules
    if options.seeds > 1:
        learning: dict[str, float] = {"seeds": options.seeds, first: statistics.fmean(rewards[first])}
        for schedule in others:
            learning[schedule] = statistics.fmean(rewards[schedule])
            learning |= {
                f"{schedule}_{name}": getattr(differences[schedule], name) for name in ("value", "low", "high")
            }
        results.record("heavy_tail_learning", learning, is_wanted=options.json)
    return 1 if any(learned_less(found) for found in differences.values()) else 0


def compare(rewards: dict[str, list[float]]) -> dict[str, Estimate]:
    """Print how the rewards of each schedule differ from those of the first, seed by seed; returns the differences."""
    first, *others = rewards
    differences: dict[str, Estimate] = {}
    for schedule in others:
        pairs = zip(rewards[schedule], rewards[first], strict=True)
        found = differences[schedule] = estimate_mean([[mine - of_first] for mine, of_first in pairs])
        interval = f" ({found.low:+.3f} to {found.high:+.3f})" if found.has_interval else ""
        print(f"{schedule}: reward a turn {found.value:+.3f}{interval} against {first}, {len(rewards[first])} seeds")
        if learned_less(found):
            print(f"Missed: {schedule} learned less from its episodes than {first}.")
    return differences


def learned_less(difference: Estimate) -> bool:
    """Whether the whole interval is below zero."""
    return difference.has_interval and difference.high < 0


if __name__ == "__main__":
    sys.exit(main())
