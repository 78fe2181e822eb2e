"""Trains SmolLM2-135M on a task of reasoning-gym on a CPU, with real vLLM rollouts, and measures what it learned.

The task is `reasoning_gym:syllogism`: two statements such as "No birds are tigers", then "Does it logically follow that
...? (Answer Yes or No)". With `invalid_ratio=0.5` half of the answers are Yes, so whoever always says the same is right
half of the time: up to there a model learns to answer with one word, above it which word. It starts as it comes and is
paid by the task's own scorer. Success is measured on held-out seeds before training, every few steps and at the end.

    pip install -e '.[reasoning-gym]'
    python -m benchmarks.reasoning_gym_learning
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from benchmarks import results
from benchmarks.learning import held_out, lines, settings, show

from turnsmith import EnvironmentConfig, RayPPOTrainer

TASK = "reasoning_gym:syllogism"
SETTINGS = {"invalid_ratio": 0.5}
GOAL = 0.2


def figures(trainer: RayPPOTrainer, options: argparse.Namespace) -> dict[str, float]:
    """What the docs show of a run: its first, middle and last evaluation, and what it took."""
    points = [record for record in lines(trainer, options.batch) if record["kind"] == "evaluation"]
    shown: dict[str, float] = {}
    for name, point in {"first": points[0], "middle": points[len(points) // 2], "last": points[-1]}.items():
        said = [episode.actions[-1].strip() for episode in held_out(trainer, point["step"])]
        shown |= {f"{name}_{key}": point[key] for key in ("step", "success", "low", "high")}
        shown[f"{name}_one_word"] = sum(text in ("Yes", "No") for text in said) / len(said)
        shown[f"{name}_commonest"] = Counter(said).most_common(1)[0][1] / len(said)
    shown |= {"minutes": points[-1]["seconds"] / 60, "held_out": options.evaluation_episodes, "seed": options.seed}
    return shown | {"episodes_a_step": options.batch}


def misses(shown: dict[str, float]) -> list[str]:
    """What is below the goal."""
    rise = shown["last_success"] - shown["first_success"]
    return [] if rise >= GOAL else [f"success rose by {100 * rise:.0f} points, less than {100 * GOAL:.0f}"]


def main() -> int:
    """Train, print and write the curve, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("reasoning-gym-learning"), help="folder for what is made")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="episodes in a step")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    results.add_option(parser)
    options = parser.parse_args()
    options.group, options.turns, options.turn_tokens, options.episode_tokens = 4, 1, 8, 16
    options.evaluation_episodes = 256
    config = settings(options)
    config.model.model_name, config.model.local_path = "smollm2", None
    config.environment = EnvironmentConfig(**SETTINGS)
    trainer = RayPPOTrainer(config, TASK)
    trainer.fit()
    for step in (0, options.steps):
        show(trainer, step)
    for record in trainer.evaluations:
        low, high = record["success/low"], record["success/high"]
        print(f"step {record['step']:3}  success {record['success/mean']:.0%} ({low:.0%} to {high:.0%})")
    shown = figures(trainer, options)
    print({name: round(value, 3) for name, value in shown.items()})
    results.record("reasoning_gym_learning", shown, is_wanted=options.json)
    missed = misses(shown)
    for sentence in missed:
        print(f"Missed: {sentence}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
