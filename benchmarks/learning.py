"""Trains SmolLM2-135M in the calculator environment on a CPU, with real vLLM rollouts, and measures what it learned.

The model starts from what `benchmarks/learning_start.py` makes: as it comes, it never writes a call that works. Success
is measured on held-out starts before training, every few steps and at the end. Writes one JSON line a step and one an
evaluation, in the form of `benchmarks/learning_trl.py`; `seconds` is the wall clock of training alone, without start-up
and evaluations. At the end it prints three held-out episodes before and after.

    python -m benchmarks.learning
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.env.examples import Calculator
from turnsmith.records.episodes import read_episodes
from turnsmith.rollout.evaluation.result import IN_TRAINING
from turnsmith.trajectory import Trajectory

SHOWN = 3


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


def main() -> None:
    """Train, write and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("learning"), help="folder for everything that is made")
    parser.add_argument("--name", default="ours", help="of the file with the JSON lines")
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="episodes in a step")
    parser.add_argument("--group", type=int, default=8, help="episodes of one start")
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--turn-tokens", type=int, default=64, help="most tokens of a turn")
    parser.add_argument("--episode-tokens", type=int, default=256, help="most tokens after the opening prompt")
    parser.add_argument("--turns", type=int, default=3, help="most turns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--evaluation-episodes", type=int, default=64)
    options = parser.parse_args()
    start = options.out / "start"
    if not start.exists():
        subprocess.run([sys.executable, str(Path(__file__).with_name("learning_start.py")), "--out", start], check=True)
    trainer = RayPPOTrainer(settings(options), Calculator)
    trainer.fit()
    found = lines(trainer, options.batch)
    (options.out / f"{options.name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    for step in (0, options.steps) if options.evaluate_every else ():
        show(trainer, step)


if __name__ == "__main__":
    main()
