"""How many episodes until a model gets out of the maze 9 times in 10: credit for the whole episode against each turn.

Real training (verl, Ray, the tiny model) in a `TwoStepMaze`, the same seeds and episodes for each way of giving credit.
Writes a JSON file with every run's success by episodes, from which `docs/images/credit_maze.py` draws the plot.

    python benchmarks/credit_maze.py --seeds 5 --out credit_maze.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from turnwise import ConfigStore, RayPPOTrainer
from turnwise.env.examples import TwoStepMaze
from turnwise.records.episodes import read_episodes

CREDITS = ("turn", "episode", "anchored")
BATCH, WINDOW = 64, 256
"""Success is the share of the last so many episodes."""


class AnyLetterMaze(TwoStepMaze):
    """The maze for a model that cannot read: any character is a move, so that a random one is as good as a guess."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Half of all characters turn left, and each door has an eighth of them."""
        code = ord(action[0]) if action else 0
        return super().step(str(code % self.doors + 1) if self.state == "hall" else "rl"[code % 2])


def train(credit: str, seed: int, steps: int, folder: str) -> list[float]:
    """Train one model; the share of each step's episodes that got out."""
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 1
    config.training.adv_estimator = "grpo"
    config.training.credit = credit
    config.training.gamma = 0.0 if credit != "episode" else 1.0
    config.training.batch_size, config.training.group_size = BATCH, 16
    config.training.micro_batch_size = BATCH
    config.training.learning_rate = 3e-3
    config.training.seed = seed
    config.checkpoint.output_dir, config.checkpoint.save_interval = folder, 0
    trainer = RayPPOTrainer(config, AnyLetterMaze)
    shares: list[float] = []
    try:
        while len(shares) < steps and not reached(shares, BATCH):
            trainer.fit(num_epochs=1, num_iters_per_epoch=10)
            assert trainer.run is not None
            for step in range(len(shares) + 1, len(shares) + 11):
                episodes = read_episodes(trainer.run, step)
                shares.append(sum(bool(one.infos[-1].get("success")) for one in episodes) / len(episodes))
    finally:
        trainer.cleanup()
    return shares


def reached(shares: list[float], batch_size: int, goal: float = 0.9) -> int | None:
    """After how many episodes the last `WINDOW` of them got out 9 times in 10; None: never."""
    window = WINDOW // batch_size
    for end in range(window, len(shares) + 1):
        if sum(shares[end - window : end]) / window >= goal:
            return end * batch_size
    return None


def main() -> None:
    """Run all, print a table, keep the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="most optimizer steps of one run")
    parser.add_argument("--credits", nargs="*", default=CREDITS)
    parser.add_argument("--out", type=Path, default=Path("credit_maze.json"))
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    for credit in args.credits:
        for seed in range(args.seeds):
            if f"{credit}/{seed}" in results:
                continue
            with tempfile.TemporaryDirectory() as folder:
                results[f"{credit}/{seed}"] = train(credit, seed, args.steps, folder)
            args.out.write_text(json.dumps(results))
            print(
                f"{credit:10} seed {seed}: 90 % after {reached(results[f'{credit}/{seed}'], 64)} episodes", flush=True
            )


if __name__ == "__main__":
    main()
