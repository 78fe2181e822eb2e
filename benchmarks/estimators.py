"""PPO, GRPO, RLOO and credit for each turn beside each other: what a model learns from as many episodes.

Every way trains with every seed, at the default discount: the tiny model in `examples/letters.py` (three turns, a
reward for each), or SmolLM2 with real vLLM in `benchmarks/choices.py` (four turns, a reward for each). Prints the mean
reward of an episode over the whole run, which is the area below the learning curve, and at its end, with the seconds of
a step. With `--json` the curves are added to `benchmarks/results/estimators.json`, from which
`python -m docs.images.estimators` draws its picture, or to `estimators_smollm2.json`: one reading for each seed. Seeds
that are there already are left out.

    python -m benchmarks.estimators --seeds 5
    python -m benchmarks.estimators --seeds 5 --steps 10 --batch 16 --model smollm2 --ways grpo turn
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from benchmarks import results
from benchmarks.choices import Choices
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
TASKS = {
    "tiny": (Letters, "inference.max_tokens=8 training.learning_rate=1e-2"),
    "smollm2": (
        Choices,
        "inference.backend=vllm inference.max_tokens=2 inference.max_episode_tokens=128 training.learning_rate=3e-5",
    ),
}
"""What each model is trained in, and with which settings."""
SHOWN = 5
"""Steps between two points of a curve; a point is the mean of as many."""


def train(way: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Train one way with one seed; the figures of the run."""
    environment, settings = TASKS[options.model]
    steps, batch = options.steps, options.batch
    with tempfile.TemporaryDirectory() as folder:
        own = [f"model.model_name={options.model}", f"training.batch_size={batch}", f"training.seed={1000 * seed}"]
        own += [f"checkpoint.output_dir={folder}", "checkpoint.save_interval=0"]
        trainer = RayPPOTrainer(
            apply_overrides(ConfigStore(), [*settings.split(), *WAYS[way].split(), *own]), environment
        )
        try:
            records = trainer.fit(num_epochs=1, num_iters_per_epoch=steps)
        finally:
            trainer.cleanup()
    rewards = [record["reward/mean"] for record in records]
    shown = {f"{way}_learned": statistics.fmean(rewards), f"{way}_last": statistics.fmean(rewards[-SHOWN:])}
    shown[f"{way}_seconds"] = statistics.median(record["time/step"] for record in records)
    for end in range(SHOWN, steps + 1, SHOWN):
        shown[f"{way}_at_{end * batch}"] = statistics.fmean(rewards[end - SHOWN : end])
    return shown


def main() -> None:
    """Train all, one after another, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", choices=TASKS, default="tiny")
    parser.add_argument("--batch", type=int, default=32, help="episodes in a step")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    results.add_option(parser)
    options = parser.parse_args()
    name = "estimators" if options.model == "tiny" else f"estimators_{options.model}"
    readings = results.kept(name) if options.json else []
    for seed in range(len(readings), options.seeds):
        found: dict[str, float] = {"seed": seed, "steps": options.steps, "episodes_a_step": options.batch}
        for way in options.ways:
            found |= train(way, seed, options)
            print(
                f"seed {seed}, {way}: {found[f'{way}_learned']:.3f}, at the end {found[f'{way}_last']:.3f}", flush=True
            )
        readings.append(found)
        results.record(name, found, is_wanted=options.json)
    for way in options.ways:
        learned = estimate_mean([[one[f"{way}_learned"]] for one in readings])
        interval = f" ({learned.low:.3f} to {learned.high:.3f})" if learned.has_interval else ""
        last, seconds = (statistics.fmean(one[f"{way}_{name}"] for one in readings) for name in ("last", "seconds"))
        print(f"{way:5} reward {learned.value:.3f}{interval}, at the end {last:.3f}, {seconds:.1f} s a step")


if __name__ == "__main__":
    main()
