"""As the docstring of the maze says: credit for whole episodes does not learn it, credit by turn does."""

from __future__ import annotations

import math
import random

import pytest

from turnsmith.env.examples import TwoStepMaze

GROUP, RATE = 8, 0.1
MOVES = {"fork": "lr", "hall": "12345678", "dead end": "-"}


def probabilities(logits: list[float]) -> list[float]:
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def learn(discount: float | None, seed: int, steps: int = 300) -> float:
    """REINFORCE with the group mean as baseline and one logit per move; returns the probability of getting out.

    A turn is credited with its own reward and the discounted later ones, or (None) with the whole episode's.
    """
    rng = random.Random(seed)
    logits = {place: [0.0] * len(moves) for place, moves in MOVES.items()}
    for _ in range(steps):
        policy = {place: probabilities(values) for place, values in logits.items()}
        episodes = [play(policy, rng) for _ in range(GROUP)]
        credits = [credit([reward for *_, reward in turns], discount) for turns in episodes]
        means = [sum(of_turn) / GROUP for of_turn in zip(*credits, strict=True)]
        for turns, credited in zip(episodes, credits, strict=True):
            for (place, move, _), paid, average in zip(turns, credited, means, strict=True):
                for index, probability in enumerate(policy[place]):
                    logits[place][index] += RATE * (paid - average) * ((index == move) - probability) / GROUP
    return probabilities(logits["fork"])[0] * probabilities(logits["hall"])[2]


def play(policy: dict[str, list[float]], rng: random.Random) -> list[tuple[str, int, float]]:
    maze = TwoStepMaze()
    maze.reset()
    turns: list[tuple[str, int, float]] = []
    while not maze.done:
        place = maze.state
        move = rng.choices(range(len(MOVES[place])), policy[place])[0]
        turns.append((place, move, maze.step(MOVES[place][move])[1]))
    return turns


def credit(rewards: list[float], discount: float | None) -> list[float]:
    if discount is None:
        return [sum(rewards)] * 2
    return [rewards[0] + discount * rewards[1], rewards[1]]


@pytest.mark.parametrize("discount", [0.0, 0.2])
def test_credit_for_each_turn_learns_the_maze(discount: float) -> None:
    assert min(learn(discount, seed) for seed in range(5)) > 0.9


def test_credit_for_the_whole_episode_learns_to_stay_out_of_it() -> None:
    assert max(learn(None, seed) for seed in range(5)) < 0.1
