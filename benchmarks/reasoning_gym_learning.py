"""Trains SmolLM2-135M on a task of reasoning-gym on a CPU, with real vLLM rollouts, and measures what it learned.

The environment is `reasoning_gym:needle_haystack` as it ships: four statements such as "Roger lusts after playing the
clarinet.", then "Who lusts after playing the clarinet? Reply only with a name." With `exact=true` nothing but the right
name is paid. As it comes, SmolLM2 does not answer with a name, so every reward is 0. It starts from SmolLM2 after a few
steps on answers that are one of the four names, drawn at random: it has to find out by reward which of them is right.
Success is measured on held-out seeds before training, every few steps and at the end.

    pip install 'turnsmith[reasoning-gym]'
    python -m benchmarks.reasoning_gym_learning
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.learning import lines, settings, show
from benchmarks.learning_start import FIRST_SEED, fine_tune
from transformers import AutoTokenizer

from turnsmith import Chat, EnvironmentConfig, EnvironmentSpec, RayPPOTrainer, resolve

TASK = "reasoning_gym:needle_haystack"
STATEMENTS = 4
SETTINGS = {"min_num_statements": STATEMENTS, "max_num_statements": STATEMENTS, "exact": True}
START_STEPS, START_BATCH = 16, 8
GOAL = 0.2


def demonstration(chat: Chat, environment: Any, seed: int) -> tuple[list[int], list[int]]:
    """The tokens of a question and of one of its names, and 1 for those that the model is to say."""
    question = environment.reset(seed=seed)
    name = random.Random(seed).choice(re.findall(r"(\S+) [^.]+\. ", question))
    prompt, said = chat.open([{"role": "user", "content": question}]), [*chat.encode(name), chat.close_id]
    return [*prompt, *said], [0] * len(prompt) + [1] * len(said)


def make_start(folder: Path) -> None:
    """Fine-tune SmolLM2 on answers that have the right form."""
    chat = Chat(AutoTokenizer.from_pretrained(resolve("smollm2")))
    environment = EnvironmentSpec.of(TASK, EnvironmentConfig(**SETTINGS)).build()
    firsts = range(FIRST_SEED, FIRST_SEED + START_STEPS * START_BATCH, START_BATCH)
    batches = ([demonstration(chat, environment, first + n) for n in range(START_BATCH)] for first in firsts)
    fine_tune(batches, folder, 1e-4)


def figures(trainer: RayPPOTrainer, options: argparse.Namespace) -> dict[str, float]:
    """What the docs show of a run: its first, middle and last evaluation, and what it took."""
    points = [record for record in lines(trainer, options.batch) if record["kind"] == "evaluation"]
    shown: dict[str, float] = {}
    for name, point in {"first": points[0], "middle": points[len(points) // 2], "last": points[-1]}.items():
        shown |= {f"{name}_{key}": point[key] for key in ("step", "success", "low", "high")}
    shown |= {"minutes": points[-1]["seconds"] / 60, "held_out": options.evaluation_episodes, "seed": options.seed}
    return shown | {"episodes_a_step": options.batch, "start_answers": START_STEPS * START_BATCH, "names": STATEMENTS}


def main() -> None:
    """Train, print and write the curve; exits 1 if success rose by less than 20 points."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("reasoning-gym-learning"), help="folder for what is made")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    results.add_option(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.batch, options.group, options.learning_rate = 64, 8, 6e-5
    options.turn_tokens, options.episode_tokens, options.turns, options.evaluation_episodes = 12, 16, 1, 128
    if not (options.out / "start").exists():
        make_start(options.out / "start")
    config = settings(options)
    config.environment = EnvironmentConfig(**SETTINGS)
    trainer = RayPPOTrainer(config, TASK)
    trainer.fit()
    for step in (0, options.steps):
        show(trainer, step)
    for record in trainer.evaluations:
        low, high = record["success/low"], record["success/high"]
        print(f"step {record['step']:3}  success {record['success/mean']:.0%} ({low:.0%} to {high:.0%})")
    shown = figures(trainer, options)
    results.record("reasoning_gym_learning", shown, is_wanted=options.json)
    rise = shown["last_success"] - shown["first_success"]
    print(f"success rose by {100 * rise:.0f} points on held-out questions")
    if rise < GOAL:
        raise SystemExit(f"That is less than {100 * GOAL:.0f} points.")


if __name__ == "__main__":
    main()
