"""Trains an unmodified pydantic-ai agent (`examples/calculator_agent.py`) on SmolLM2-135M, on a CPU, to a curve.

The agent talks to its model by URL, and is trained on the tokens that it sampled. The model starts from SmolLM2 after
12 steps on scripted episodes of the same agent, which know the call's format, but only a fifth of them the right sum.
Success is measured on 64 held-out problems before training, every few steps and at the end.

    pip install pydantic-ai-slim[openai]==2.66.0
    python -m benchmarks.agent_learning
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.learning import settings
from benchmarks.learning_start import FIRST_SEED, calculation, drawn_sum, fine_tune, scripted
from transformers import AutoTokenizer

from turnsmith import Chat, RayPPOTrainer
from turnsmith.env.examples import Calculator
from turnsmith.inference.models import resolve
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout import EpisodeStart

HELD_OUT = 1_000_000
EPISODES = 64
"""Of an evaluation."""
BATCH = 32
GOAL = 0.3
START_STEPS, START_BATCH, SHARE = 12, 4, 0.2
"""Of the start: steps, episodes in a step, and the share of them that do the right sum."""


def problem(seed: int) -> dict[str, str]:
    """A word problem, and its answer."""
    desk = Calculator()
    return {"question": desk.reset(seed=seed), "answer": str(desk.answer)}


def demonstration(chat: Chat, seed: int) -> tuple[list[int], list[int]]:
    """The tokens of a scripted episode of the agent, and 1 for those that the model is to say."""
    from examples.calculator_agent import solve

    task = problem(seed)
    numbers = [int(number) for number in re.findall(r"\d+", task["question"])]
    expression = drawn_sum(numbers, random.Random(seed), SHARE)
    return asyncio.run(scripted(chat, solve, EpisodeStart(str(seed), task=task), calculation(expression)))


def make_start(folder: Path) -> None:
    """Fine-tune SmolLM2 on scripted episodes."""
    chat = Chat(AutoTokenizer.from_pretrained(resolve("smollm2")))
    rows = [demonstration(chat, FIRST_SEED + place) for place in range(START_STEPS * START_BATCH)]
    fine_tune((rows[place : place + START_BATCH] for place in range(0, len(rows), START_BATCH)), folder, 1e-4)


def curve(run: RunFolder) -> list[dict[str, Any]]:
    """The rewards of all evaluations, which are the shares of right answers."""
    wanted = ("step", "reward/mean", "reward/low", "reward/high")
    return [{name.removeprefix("reward/"): record[name] for name in wanted} for record in run.read_evaluations()]


def figures(run: RunFolder) -> dict[str, float]:
    """What the docs show of a run: its first and its last evaluation, and how its turns came about."""
    points = curve(run)
    ends = {"first": points[0], "last": points[-1]}
    shown = {f"{name}_{key}": point[key] for name, point in ends.items() for key in point}
    turns = Counter[str]()
    for record in run.read_metrics():
        turns.update({name: count for name, count in record.items() if name.startswith("agent/turns_")})
    continued = sum(turns.values()) - turns["agent/turns_opened"]
    shown |= {"turns_bridged": turns["agent/turns_bridged"], "turns_continued": continued}
    return shown | {"held_out": EPISODES, "episodes_a_step": BATCH, "start_steps": START_STEPS}


def main() -> None:
    """Train, print and write the curve; exits 1 if success rose by less than `GOAL`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("agent-learning"), help="folder for everything that is made")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    results.add_option(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.batch, options.group, options.learning_rate = BATCH, 8, 3e-5
    options.turn_tokens, options.episode_tokens, options.turns, options.evaluation_episodes = 64, 256, 3, EPISODES
    if not (options.out / "start").exists():
        # In a process of its own, whose gigabytes are free again when it ends.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(make_start, options.out / "start").result()
    config = settings(options)
    config.inference.max_prompt_tokens = 512
    trainer = RayPPOTrainer(
        config,
        "examples/calculator_agent.py:solve",
        dataset=[problem(seed) for seed in range(2000)],
        validation=[problem(HELD_OUT + seed) for seed in range(options.evaluation_episodes)],
    )
    trainer.fit()
    assert trainer.run is not None
    points = curve(trainer.run)
    for point in points:
        print(f"step {point['step']:3}  success {point['mean']:.0%} ({point['low']:.0%} to {point['high']:.0%})")
    shown = figures(trainer.run)
    results.record("agent_learning", shown, is_wanted=options.json)
    missed = misses(shown)
    print("missed: " + "; ".join(missed) if missed else "holds")
    raise SystemExit(bool(missed))


def misses(shown: dict[str, float]) -> list[str]:
    """What is below the goal."""
    rise = shown["last_mean"] - shown["first_mean"]
    return [f"success rose by {100 * rise:.0f} points, less than {100 * GOAL:.0f}"] * (rise < GOAL)


if __name__ == "__main__":
    main()
