"""Farama-Foundation/PettingZoo: games by their names, with simple players in the other seats."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from published_subjects import Subject
from turnsmith.env.adapters.pettingzoo import PettingZooEnvironment

SUITS = ("spades", "hearts", "diamonds", "clubs")
RANKS = ("A", *map(str, range(2, 11)), "J", "Q", "K")
PLANES = ("Your hand", "Top of the discard pile", "Cards that are out of the game")


def cards_and_moves(env: Any, observation: Any) -> str:
    """The planes of gin rummy's observation in words, and the numbers of the possible moves."""
    cards = [f"{rank} of {suit}" for suit in SUITS for rank in RANKS]
    planes = observation["observation"]
    held = [
        f"{plane}: {', '.join(card for card, there in zip(cards, planes[number], strict=True) if there) or 'none'}"
        for number, plane in enumerate(PLANES)
    ]
    possible = [str(move) for move, allowed in enumerate(observation["action_mask"]) if allowed]
    return "\n".join([*held, f"Possible: {', '.join(possible)}"])


def any_possible(messages: Sequence[Mapping[str, str]]) -> str:
    """One of the moves that a player is told are possible."""
    possible = re.findall(r"\d+", messages[-1]["content"].rpartition("Possible:")[2])
    return random.Random(len(messages)).choice(possible)


def drift(messages: Sequence[Mapping[str, str]]) -> str:
    """No thrust."""
    return "0 0"


class GinRummy(PettingZooEnvironment):
    """The game with the project's own rewards, its cards in words."""

    reward_range = (-1.0, 1.0)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__("classic/gin_rummy_v4", config, observe=cards_and_moves)

    def get_prompt_prefix(self) -> str:
        return (
            f"{super().get_prompt_prefix()} 2 draws a card, 3 picks the top of the discard pile, 4 declares a dead "
            "hand, 5 is gin, 6 to 57 discard a card, 58 to 109 knock with it (spades, hearts, diamonds, clubs, each "
            "from ace to king); 0 and 1 score the players' hands."
        )


def _knock_is_paid_as_if_not_configured() -> bool:
    from pettingzoo.classic.rlcard_envs.gin_rummy import raw_env

    for seed in range(200):
        game = raw_env(knock_reward=0.7, gin_reward=0.9)
        game.reset(seed=seed)
        draw, knocked = random.Random(seed), ""
        while not any(game.terminations.values()):
            moves = [move for move, allowed in enumerate(game.observe(game.agent_selection)["action_mask"]) if allowed]
            knocks = [move for move in moves if move >= 58]
            knocked = game.agent_selection if knocks else knocked
            game.step(draw.choice(knocks or moves))
        if knocked:
            return game.rewards[knocked] != 0.7
    raise AssertionError("nobody knocked")


def _food_of_another_is_not_paid() -> bool:
    from pettingzoo.sisl.waterworld.waterworld_base import WaterworldBase

    water = WaterworldBase(n_pursuers=2, n_evaders=1, n_poisons=1, n_sensors=6)
    water.reset()
    water.pursuers[0].shape.food_indicator = 1
    for pursuer in range(2):
        water.step([0.0, 0.0], pursuer, pursuer == 1)
    return water.last_rewards[0] < 5


_HERE = "published_subjects.pettingzoo_blind"
SUBJECTS = {
    "pettingzoo-gin-rummy": Subject(
        (
            f"{_HERE}:GinRummy",
            f"players.opponent=scripted:{_HERE}:any_possible",
            "inference.max_turns=60",
            "inference.max_episode_tokens=32768",
        ),
        _knock_is_paid_as_if_not_configured,
    ),
    "pettingzoo-waterworld": Subject(
        (
            "pettingzoo:sisl/waterworld_v4",
            f"players.opponent=scripted:{_HERE}:drift",
            "environment.n_pursuers=2",
            "environment.n_sensors=6",
            "environment.max_cycles=60",
            "inference.max_turns=60",
            "inference.max_episode_tokens=32768",
        ),
        _food_of_another_is_not_paid,
    ),
}
