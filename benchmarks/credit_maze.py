"""How many episodes until a policy gets out of the maze 9 times in 10: credit for the whole episode against each turn.

`TwoStepMaze` itself, played by a policy that is a table of logits, one for each place and move, and trained with the
estimators of `algo` through the same function that training calls; the same seeds and number of episodes for each way
of giving credit. Prints a table, and writes every run's success by episodes, from which `docs/images/credit_maze.py`
draws the plot. `--model` trains the tiny language model with verl instead, which takes minutes a seed.

    python -m benchmarks.credit_maze --seeds 20 --out credit_maze.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.env.examples import TwoStepMaze
from turnsmith.trainer.advantages import estimate

CREDITS = {"turn": 0.2, "anchored": 0.2, "episode": 1.0}
"""The ways of giving credit, and the discount from turn to turn; the maze's docstring says why it must be small."""
BATCH, GROUP, WINDOW = 64, 16, 256
"""Episodes in a step and in a group; success is the share of the last `WINDOW` episodes."""
PLACES = {"fork": "lr", "hall": "12345678", "dead end": "-"}
NUMBERS = {place: number for number, place in enumerate(PLACES)}


def train_table(credit: str, seed: int, steps: int, estimator: str = "grpo") -> list[float]:
    """Train a table of logits; the share of each step's episodes that got out."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.zeros(len(PLACES), 8, requires_grad=True)
    allowed = torch.tensor([[move < len(moves) for move in range(8)] for moves in PLACES.values()])
    optimizer = torch.optim.Adam([logits], lr=0.03)
    index = [number // GROUP for number in range(BATCH)]
    shares: list[float] = []
    while len(shares) < steps and not reached(shares):
        log_policy = torch.log_softmax(logits.masked_fill(~allowed, -torch.inf), dim=-1)
        places, moves, rewards, success = play(log_policy.detach().exp(), generator)
        # One token a turn, an observation between them: as training lays out an episode.
        mask = torch.tensor([[1, 0, 1]]).expand(BATCH, 3)
        paid, anchors = torch.zeros(BATCH, 3), torch.zeros(BATCH, 3, dtype=torch.long)
        paid[:, ::2], anchors[:, ::2] = rewards, places
        gamma = CREDITS[credit]
        advantages, _ = estimate(estimator, credit, paid, mask, index, gamma, 1.0, anchors=anchors)
        loss = -(advantages[:, ::2] * log_policy[places, moves]).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shares.append(success)
    return shares


def play(policy: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """One batch of episodes: where each turn began, what was done there, what it paid; the share that got out."""
    places, moves = (torch.zeros(BATCH, 2, dtype=torch.long) for _ in range(2))
    rewards, out = torch.zeros(BATCH, 2), 0
    for number in range(BATCH):
        maze = TwoStepMaze()
        maze.reset()
        for turn in range(2):
            place = maze.state
            move = int(torch.multinomial(policy[NUMBERS[place]], 1, generator=generator))
            _, reward, _, info = maze.step(PLACES[place][move])
            places[number, turn], moves[number, turn], rewards[number, turn] = NUMBERS[place], move, reward
            out += bool(info.get("success"))
    return places, moves, rewards, out / BATCH


class AnyLetterMaze(TwoStepMaze):
    """The maze for a model that cannot read: any character is a move, so that a random one is as good as a guess."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Half of all characters turn left, and each door has an eighth of them."""
        code = ord(action[0]) if action else 0
        return super().step(str(code % self.doors + 1) if self.state == "hall" else "rl"[code % 2])


def train_model(credit: str, seed: int, steps: int, estimator: str = "grpo") -> list[float]:
    """Train the tiny model with verl; the share of each step's episodes that got out."""
    config = ConfigStore()
    config.model.model_name, config.inference.max_tokens = "tiny", 1
    training = config.training
    training.adv_estimator, training.credit, training.gamma = estimator, credit, CREDITS[credit]
    training.batch_size, training.group_size, training.micro_batch_size = BATCH, GROUP, BATCH
    training.learning_rate, training.seed = 3e-3, seed
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config.checkpoint.output_dir, config.checkpoint.save_interval = folder, 0
        trainer = RayPPOTrainer(config, AnyLetterMaze)
        try:
            while len(shares) < steps and not reached(shares):
                trainer.fit(num_epochs=1, num_iters_per_epoch=10)
                assert trainer.run is not None
                for step in range(len(shares) + 1, len(shares) + 11):
                    episodes = read_episodes(trainer.run, step)
                    shares.append(sum(bool(one.infos[-1].get("success")) for one in episodes) / len(episodes))
        finally:
            trainer.cleanup()
    return shares


def reached(shares: list[float], goal: float = 0.9) -> int | None:
    """After how many episodes the last `WINDOW` of them got out 9 times in 10; None: never."""
    window = WINDOW // BATCH
    for end in range(window, len(shares) + 1):
        if sum(shares[end - window : end]) / window >= goal:
            return end * BATCH
    return None


def main() -> None:
    """Run all, print a table, keep the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="store_true", help="train the tiny language model instead of a table")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400, help="most optimizer steps of one run")
    parser.add_argument("--estimator", default="grpo")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    train = train_model if args.model else train_table
    results: dict[str, list[float]] = {}
    means: dict[str, float] = {}
    for credit in CREDITS:
        needed: list[int] = []
        for seed in range(args.seeds):
            shares = results[f"{credit}/{seed}"] = train(credit, seed, args.steps, args.estimator)
            needed.append(reached(shares) or args.steps * BATCH)
            if args.out:
                args.out.write_text(json.dumps(results))
        never = sum(reached(results[f"{credit}/{seed}"]) is None for seed in range(args.seeds))
        means[credit] = sum(needed) / len(needed)
        print(f"credit={credit:9} 90 % after {means[credit]:7.0f} episodes (mean of {args.seeds}; {never} never)")
    for credit in ("turn", "anchored"):
        print(f"{credit} / episode: {means[credit] / means['episode']:.2f} (a run that never got there counts as done)")


if __name__ == "__main__":
    main()
