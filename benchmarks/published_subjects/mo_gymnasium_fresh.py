"""Farama-Foundation/MO-Gymnasium: environments with several rewards, added up as the package's wrapper does."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment


def _class(module: str, name: str) -> Any:
    """The class, without its package's other environments, which need simulators."""
    for package in ("mo_gymnasium", "mo_gymnasium.envs"):
        made = ModuleType(package)
        made.__path__ = [f"{place}/{package.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(package, made)
    return getattr(importlib.import_module(f"mo_gymnasium.envs.{module}"), name)


class Weighted(BaseEnvironment):
    """The environment with a weighted sum of its rewards; an action is one of the words."""

    place = ("", "")
    about = ""
    words: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def __init__(self, config: Any = None) -> None:
        self.game = _class(*self.place)()
        space = self.game.reward_space
        self.reward_range = (self._summed(space.low), self._summed(space.high))

    def get_prompt_prefix(self) -> str:
        return f"{self.about} Answer with one word: {', '.join(self.words)}."

    def reset(self, seed: int = 0) -> str:
        observation, _ = self.game.reset(seed=seed)
        return self._shown(observation)

    def step(self, action: str) -> Any:
        if action.strip() not in self.words:
            return f"Answer with one of {', '.join(self.words)}.", 0.0, False, {"invalid_action": True}
        observation, rewards, terminated, truncated, info = self.game.step(self.words.index(action.strip()))
        return self._shown(observation), self._summed(rewards), bool(terminated), bool(truncated), info

    def _summed(self, rewards: Any) -> float:
        return sum(weight * float(reward) for weight, reward in zip(self.weights, rewards, strict=True))

    @staticmethod
    def _shown(observation: Any) -> str:
        return json.dumps([round(float(value), 3) for value in observation])


class Minecart(Weighted):
    """Two ores to dig and fuel to save."""

    place = ("minecart.minecart", "Minecart")
    about = "Drive a cart to the mines, dig ore and come back. You see position, speed, direction and load."
    words = ("mine", "left", "right", "accelerate", "brake", "none")
    weights = (0.4, 0.4, 0.2)


class ResourceGathering(Weighted):
    """Gold and a diamond to fetch, past enemies."""

    place = ("resource_gathering.resource_gathering", "ResourceGathering")
    about = (
        "On a grid of five by five bring gold or the diamond home to row 4, column 2. Gold is in row 0, column 2, the "
        "diamond in row 1, column 4. You see your row and column and whether you have gold and the diamond."
    )
    words = ("up", "down", "left", "right")
    weights = (0.2, 0.3, 0.5)

    def solve(self) -> list[str]:
        return ["right", "right", "up", "up", "up", "down", "down", "down", "left", "left"]


def _cannot_be_built() -> bool:
    try:
        _class("minecart.minecart", "Minecart")()
    except TypeError:
        return True
    return False


def _rewards_are_out_of_range() -> bool:
    game = ResourceGathering()
    game.reset(seed=1)
    space = game.game.reward_space
    for move in game.solve():
        rewards = game.game.step(game.words.index(move))[1]
        if any(rewards < space.low) or any(rewards > space.high):
            return True
    return False


_HERE = "published_subjects.mo_gymnasium_fresh"
_LONG = ("environment.max_steps=40", "inference.max_turns=40", "inference.max_episode_tokens=16384")
SUBJECTS = {
    "mo-gymnasium-minecart": Subject((f"{_HERE}:Minecart", *_LONG), _cannot_be_built),
    "mo-gymnasium-resource-range": Subject((f"{_HERE}:ResourceGathering", *_LONG), _rewards_are_out_of_range),
}
