"""PPO, GRPO, RLOO and credit for each turn beside each other: what the tiny model learns from as many episodes.

Every way trains `examples/letters.py` (three turns, a reward for each) with every seed, at the default discount. Prints
the mean reward of an episode over the whole run, which is the area below the learning curve, and at its end, with the
seconds of a step. With `--json` the curves are added to `benchmarks/results/estimators.json`, one reading for each
seed, from which `python -m docs.images.estimators` draws its picture; seeds that are there already are left out.

    python -m benchmarks.estimators --seeds 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from benchmarks import results
from examples.letters import Letters

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.config_sources import apply_overrides
from turnsmith.rollout.evaluation.intervals import estimate_mean

WAYS = {
    "grpo": "training.adv_estimator=grpo",
    "turn": "training.adv_estimator=grpo training.credit=turn",
    "rloo": "training.adv_estimator=rloo",
    "ppo": "training.adv_estimator=gae training.critic_learning_rate=1e-2",
}
SETTINGS = "model.model_name=tiny inference.max_tokens=8 training.learning_rate=1e-2 checkpoint.save_interval=0"
BATCH = 32
SHOWN = 5
"""Steps between two points of a curve; a point is the mean of as many."""


def train(way: str, seed: int, steps: int) -> dict[str, float]:
    """Train one way with one seed; the figures of the run."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"training.batch_size={BATCH}", f"training.seed={1000 * seed}", f"checkpoint.output_dir={folder}"]
        config = apply_overrides(ConfigStore(), [*SETTINGS.split(), *WAYS[way].split(), *own])
        trainer = RayPPOTrainer(config, Letters)
        try:
            records = trainer.fit(num_epochs=1, num_iters_per_epoch=steps)
        finally:
            trainer.cleanup()
    rewards = [record["reward/mean"] for record in records]
    shown = {f"{way}_learned": statistics.fmean(rewards), f"{way}_last": statistics.fmean(rewards[-SHOWN:])}
    shown[f"{way}_seconds"] = statistics.median(record["time/step"] for record in records)
    for end in range(SHOWN, steps + 1, SHOWN):
        shown[f"{way}_at_{end * BATCH}"] = statistics.fmean(rewards[end - SHOWN : end])
    return shown


def main() -> None:
    """Train all, one after another, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    results.add_option(parser)
    options = parser.parse_args()
    readings = results.kept("estimators") if options.json else []
    for seed in range(len(readings), options.seeds):
        found: dict[str, float] = {"seed": seed, "steps": options.steps, "episodes_a_step": BATCH}
        for way in WAYS:
            found |= train(way, seed, options.steps)
            print(
                f"seed {seed}, {way}: {found[f'{way}_learned']:.3f}, at the end {found[f'{way}_last']:.3f}", flush=True
            )
        readings.append(found)
        results.record("estimators", found, is_wanted=options.json)
    for way in WAYS:
        learned = estimate_mean([[one[f"{way}_learned"]] for one in readings])
        interval = f" ({learned.low:.3f} to {learned.high:.3f})" if learned.has_interval else ""
        last, seconds = (statistics.fmean(one[f"{way}_{name}"] for one in readings) for name in ("last", "seconds"))
        print(f"{way:5} reward {learned.value:.3f}{interval}, at the end {last:.3f}, {seconds:.1f} s a step")


if __name__ == "__main__":
    main()
