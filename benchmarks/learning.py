"""Trains SmolLM2-135M on word problems with a calculator, on a CPU, with real vLLM rollouts: what does it learn?

The model starts from what `benchmarks/learning_start.py` makes: as it comes, it never writes a call that works. Success
is measured on problems in wordings that training never shows, before training, every few steps and at the end. Writes
one JSON line a step and one an evaluation for each seed, in the form of `benchmarks/learning_trl.py`; `seconds` is the
wall clock of training alone, without start-up and evaluations. At the end it prints three held-out episodes before and
after. With `--json` the figures of each seed are added to `benchmarks/results/learning.json`, and seeds that are there
already are left out: the same command goes on where it was ended.

    python -m benchmarks.learning --seeds 5
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.learning_start import BATCH, STEPS, WRONG
from benchmarks.word_problems import HELD_OUT, TRAINED, WordProblems

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.records.episodes import read_episodes
from turnsmith.rollout.evaluation.result import IN_TRAINING
from turnsmith.trajectory import Trajectory

SHOWN = 3
SEEDS_APART = 1000
"""Between the seeds of two runs: a run's first problem has the run's seed, its next one the next."""


def settings(options: argparse.Namespace) -> ConfigStore:
    """All that differs from the defaults."""
    config = ConfigStore()
    config.model.local_path = str(options.out / "start")
    config.inference.backend = options.engine
    config.inference.max_tokens = options.turn_tokens
    config.inference.max_turns = options.turns
    config.inference.max_prompt_tokens = 256
    config.inference.max_episode_tokens = options.episode_tokens
    config.training.batch_size = options.batch
    config.training.group_size = options.group
    config.training.learning_rate = options.learning_rate
    config.training.steps_per_epoch = options.steps
    config.training.seed = options.seed
    config.evaluation.every = options.evaluate_every
    config.evaluation.episodes = options.evaluation_episodes
    config.checkpoint.output_dir = str(options.out / "runs")
    return config


def lines(trainer: RayPPOTrainer, batch: int) -> list[dict[str, Any]]:
    """One record for each step and evaluation, in order."""
    found: list[dict[str, Any]] = []
    seconds = {0: 0.0}
    for record in trainer.metrics_history:
        step = record["step"]
        seconds[step] = seconds[step - 1] + record["time/step"]
        phases = {name: value for name, value in record.items() if name.startswith("time/")}
        about = {"reward": record["reward/mean"], "tokens": record["tokens/response"], **phases}
        found.append({"kind": "step", "step": step, "seconds": seconds[step], **about})
    for record in trainer.evaluations:
        about = {"success": record["success/mean"], "low": record["success/low"], "high": record["success/high"]}
        found.append({"kind": "evaluation", "step": record["step"], "seconds": seconds[record["step"]], **about})
    for record in found:
        record["episodes"] = record["step"] * batch
    return sorted(found, key=lambda record: (record["step"], record["kind"] == "evaluation"))


def held_out(trainer: RayPPOTrainer, step: int) -> list[Trajectory]:
    """Held-out episodes as they went after a step."""
    assert trainer.run is not None
    return read_episodes(next((trainer.run.path / IN_TRAINING).glob(f"step-{step:08d}-*.parquet")))


def show(trainer: RayPPOTrainer, step: int) -> None:
    """Print a few of them."""
    print(f"\nAfter step {step}:")
    for trajectory in held_out(trainer, step)[:SHOWN]:
        for message in trajectory.messages:
            if message["role"] != "system":
                print(f"  {message['role']:9} {message['content']!r}")
        print(f"  reward    {trajectory.total_reward:g}\n")


def figures(trainer: RayPPOTrainer, options: argparse.Namespace) -> dict[str, float]:
    """What the docs show of a run: success after so many episodes, and what it took."""
    points = [record for record in lines(trainer, options.batch) if record["kind"] == "evaluation"]
    shown: dict[str, float] = {"seed": trainer.config.training.seed, "steps": options.steps}
    shown |= {"episodes_a_step": options.batch, "held_out": options.evaluation_episodes}
    shown |= {"trained_wordings": len(TRAINED), "held_out_wordings": len(HELD_OUT), "formulas": 1 + len(WRONG)}
    shown["scripted_episodes"] = STEPS * BATCH
    for point in points:
        episodes = point["episodes"]
        shown |= {f"{name}_{episodes}": point[name] for name in ("success", "low", "high", "seconds")}
    seconds = points[-1]["seconds"]
    evaluating = sum(record["time/evaluate"] for record in trainer.evaluations)
    return shown | {"minutes": seconds / 60, "minutes_with_evaluations": (seconds + evaluating) / 60}


def told(episode: Trajectory) -> dict[str, Any]:
    """The sum that an episode had worked out, and what it answered."""
    calls = re.findall(r'"expression": "([^"]*)"', " ".join(episode.actions))
    numbers = re.findall(r"-?\d+", episode.actions[-1].replace(",", ""))
    return {
        "call": calls[-1] if calls else "",
        "answer": numbers[-1] if numbers else "",
        "reward": episode.total_reward,
    }


def before_and_after(trainer: RayPPOTrainer, steps: int) -> list[dict[str, Any]]:
    """The held-out problems that it got wrong with a sum of its own before training, and right after it."""
    found: list[dict[str, Any]] = []
    after = {episode.seed: episode for episode in held_out(trainer, steps)}
    for episode in held_out(trainer, 0):
        pair = told(episode), told(after[episode.seed])
        if all(one["call"] for one in pair) and pair[0]["reward"] < pair[1]["reward"]:
            found.append({"problem": episode.states[0], "before": pair[0], "after": pair[1]})
    return found[:SHOWN]


def train(options: argparse.Namespace, seed: int) -> RayPPOTrainer:
    """Train with one seed, and write its lines."""
    options.seed = seed
    trainer = RayPPOTrainer(settings(options), WordProblems, validation=WordProblems({"held_out": True}))
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    found = lines(trainer, options.batch)
    (options.out / f"{options.name}-{seed}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    return trainer


def main() -> None:
    """Train, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("learning"), help="folder for everything that is made")
    parser.add_argument("--name", default="ours", help="of the files with the JSON lines")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="episodes in a step")
    parser.add_argument("--group", type=int, default=8, help="episodes of one start")
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--turn-tokens", type=int, default=64, help="most tokens of a turn")
    parser.add_argument("--episode-tokens", type=int, default=256, help="most tokens after the opening prompt")
    parser.add_argument("--turns", type=int, default=3, help="most turns")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs, each with a seed of its own")
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--evaluation-episodes", type=int, default=64)
    results.add_option(parser)
    options = parser.parse_args()
    start = options.out / "start"
    if not start.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.learning_start", "--out", start], check=True)
    done = {one["seed"] for one in results.kept("learning")} if options.json else set()
    for seed in range(0, options.seeds * SEEDS_APART, SEEDS_APART):
        if seed in done:
            continue
        trainer = train(options, seed)
        for step in (0, options.steps):
            show(trainer, step)
        shown = figures(trainer, options)
        print({name: round(value, 3) for name, value in shown.items()}, flush=True)
        results.record("learning", shown, is_wanted=options.json, episodes=before_and_after(trainer, options.steps))


if __name__ == "__main__":
    main()
