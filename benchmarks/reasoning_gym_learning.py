"""Trains SmolLM2-135M on a task of reasoning-gym on a CPU, with real vLLM rollouts, and measures what it learned.

The task is `reasoning_gym:syllogism`: two statements such as "No birds are tigers", then "Does it logically follow that
...? (Answer Yes or No)". With `invalid_ratio=0.5` about half of the answers are Yes. The model starts as it comes and
is paid by the task's own scorer. Success is measured on held-out seeds before training, every few steps and at the end.

`--baselines` trains nothing. It measures what rules that do not reason get on the same held-out questions: the better
of Yes and No each time, and the answer that is commoner in the training questions after the word with which the
conclusion begins (All, No or Some).

    pip install -e '.[reasoning-gym]'
    python -m benchmarks.reasoning_gym_learning
    python -m benchmarks.reasoning_gym_learning --baselines
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.learning import held_out, lines, settings, show

from turnsmith import EnvironmentConfig, EnvironmentSpec, RayPPOTrainer
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED

TASK = "reasoning_gym:syllogism"
SETTINGS: dict[str, Any] = {"invalid_ratio": 0.5}
GOAL = 0.2
TRAINED, HELD_OUT = 384, 256
"""Questions: of the 24 steps, 16 groups each, and of an evaluation."""
_CONCLUSION = re.compile(r"follow that:?\s*(\w+)")


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


def baselines() -> dict[str, float]:
    """The success of both rules, learned on the training questions, on those that are held out."""
    environment = EnvironmentSpec.of(TASK, EnvironmentConfig(**SETTINGS)).build()

    def questions(first: int, count: int) -> list[tuple[str, str]]:
        asked = [(environment.reset(seed=seed), environment.solve()) for seed in range(first, first + count)]
        return [(_CONCLUSION.findall(question)[-1], answer) for question, answer in asked]

    trained, asked = questions(0, TRAINED), questions(FIRST_SEED, HELD_OUT)
    constant, count = Counter(answer for _, answer in asked).most_common(1)[0]
    by_word = {
        word: Counter(answer for one, answer in trained if one == word).most_common(1)[0][0] for word, _ in trained
    }
    print(f"always {constant}; by the first word of the conclusion: {by_word}")
    return {
        "constant": count / HELD_OUT,
        "one_word": sum(answer == by_word[word] for word, answer in asked) / HELD_OUT,
        "held_out": HELD_OUT,
    }


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
    parser.add_argument("--baselines", action="store_true", help="only what rules get that do not reason: seconds")
    results.add_option(parser)
    options = parser.parse_args()
    if options.baselines:
        found = baselines()
        print({name: round(value, 3) for name, value in found.items()})
        results.record("reasoning_gym_baselines", found, is_wanted=options.json)
        return 0
    options.group, options.turns, options.turn_tokens, options.episode_tokens = 4, 1, 8, 16
    options.evaluation_episodes = HELD_OUT
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
