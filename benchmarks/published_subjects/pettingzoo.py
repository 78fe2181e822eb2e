"""Farama-Foundation/PettingZoo: a game of particles, with others that stay where they are."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from published_subjects import Subject
from turnsmith.env.adapters.pettingzoo import PettingZooEnvironment


def stay(messages: Sequence[Mapping[str, str]]) -> str:
    """No action."""
    return "0"


class SimpleSpread(PettingZooEnvironment):
    """Three agents that are to cover three places without colliding."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        _give_a_font()
        super().__init__("mpe/simple_spread_v2", config)


def _give_a_font() -> None:
    """The game opens the font that it would draw with; the sources here are without it."""
    import pettingzoo
    import pygame

    font = Path(pettingzoo.__file__).with_name("mpe") / "_mpe_utils" / "secrcode.ttf"
    if not font.exists():
        shutil.copy(Path(pygame.__file__).with_name(pygame.font.get_default_font()), font)


def _an_agent_collides_with_itself() -> bool:
    _give_a_font()
    from pettingzoo.mpe.simple_spread.simple_spread import raw_env

    game = raw_env(N=1, local_ratio=1.0)
    game.reset(seed=1)
    game.step(0)
    return game.rewards["agent_0"] < 0


_STAY = "scripted:published_subjects.pettingzoo:stay"
SUBJECTS = {
    "pettingzoo-simple-spread": Subject(
        (
            "published_subjects.pettingzoo:SimpleSpread",
            f"players.agent_1={_STAY}",
            f"players.agent_2={_STAY}",
            "inference.max_turns=25",
            "inference.max_episode_tokens=32768",
        ),
        _an_agent_collides_with_itself,
    ),
}
