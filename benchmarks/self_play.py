"""Self-play: trains the tiny model against itself at an auction, then plays 200 games against the first model.

Both players bid in secret, three times; the higher bid takes the round, and who takes more rounds wins. Any text is a
bid, so that a random model bids at random. The opponent in training is the model itself, as it is and as it was after
each fifth step. Prints the share of games that the trained model wins with its 95 % interval, in either seat, and what
the first model wins against itself; exits with 1 if the share is below 70 %.

    python -m benchmarks.self_play
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from recipes.self_play.auction import Auction

from turnsmith import ConfigStore, EvaluationPlan, RayPPOTrainer, evaluate, read_episodes, resolve
from turnsmith.inference.engine import Sampling
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.players import Players

GOAL = 0.7
GAMES = 200


def train(folder: str, steps: int, seed: int) -> Path:
    """Train against itself; the folder of the trained model."""
    config = ConfigStore()
    config.model.model_name, config.inference.max_tokens = "tiny", 1
    config.players["opponent"] = "self"
    training = config.training
    training.batch_size, training.group_size, training.micro_batch_size = 64, 8, 64
    training.learning_rate, training.seed, training.steps_per_epoch = 1e-2, seed, 5
    training.num_epochs = max(1, steps // 5)
    config.checkpoint.output_dir = folder
    trainer = RayPPOTrainer(config, Auction)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    played = Counter(episode.others["opponent"]["who"] for episode in read_episodes(trainer.run) if episode.others)
    print("Opponents in training, by episodes:", dict(played.most_common()))
    return max(trainer.run.path.glob("players/step-*"), key=lambda model: int(model.name.removeprefix("step-")))


def against_first(model: str, games: int = GAMES) -> EvaluationResult:
    """Games of a model against the first one, with seeds that training does not use."""
    sampling = Sampling(max_tokens=1)
    plan = EvaluationPlan(episodes=games, sampling=sampling, players=Players.of({"opponent": "model:tiny"}))
    with create_inference_engine(model, "transformers") as engine:
        return evaluate(Auction, engine, plan=plan)


def misses(share: float) -> list[str]:
    """What is below the goal."""
    return [] if share >= GOAL else [f"the trained model wins {share:.1%} of its games, below {GOAL:.0%}"]


def main() -> int:
    """Train, play, print, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        before = against_first(resolve("tiny"))
        after = against_first(str(train(folder, args.steps, args.seed)))
    for name, result in (("first", before), ("trained", after)):
        wins, games = result.success, result.trajectories
        seats = [[one.infos[-1]["success"] for one in games if one.infos[-1]["seat"] == seat] for seat in (0, 1)]
        by_seat = " and ".join(f"{sum(seat)} of {len(seat)}" for seat in seats)
        print(f"{name} model against the first: {wins.value:.1%} ({wins.low:.1%} to {wins.high:.1%}), {by_seat}")
    missed = misses(after.success.value)
    for sentence in missed:
        print(f"Missed: {sentence}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
