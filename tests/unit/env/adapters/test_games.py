"""Rules of the adapters for games that need no package; tests/e2e has the real ones."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turnsmith import EnvironmentConfig
from turnsmith.env.adapters.gymnasium import GymnasiumEnvironment
from turnsmith.env.adapters.pettingzoo import PettingZooEnvironment


@pytest.mark.parametrize(("settings", "limit"), [({}, 200), ({"max_steps": 5}, 5), ({"max_steps": 500}, 500)])
def test_a_limit_of_the_user_stands_above_that_of_gymnasium(settings: dict[str, int], limit: int) -> None:
    game = SimpleNamespace(
        action_space=None, observation_space=None, spec=SimpleNamespace(id="Walk-v1", max_episode_steps=200)
    )
    config = EnvironmentConfig(**settings)
    environment = GymnasiumEnvironment(game, config, observe=lambda env, seen: "", act=lambda env, text: 0)
    assert environment.max_steps == limit


class Sticks:
    """PettingZoo's interface for games in turns: each player takes one of many sticks, twice."""

    possible_agents = ("one", "two")

    def __init__(self, result: float = 0.0) -> None:
        self.result = result

    def reset(self, seed: int) -> None:
        self.moves: list[int] = []

    @property
    def agent_selection(self) -> str:
        return self.possible_agents[len(self.moves) % 2]

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_over = len(self.moves) == 4
        return self.moves, self.result * is_over, is_over, False, {"action_mask": [1] * 1000}

    def step(self, action: int) -> None:
        self.moves.append(action)

    def close(self) -> None:
        """Nothing is open."""


def sticks(monkeypatch: pytest.MonkeyPatch, result: float = 0.0) -> PettingZooEnvironment:
    """A game in which the other player never names a stick."""
    monkeypatch.setitem(sys.modules, "pettingzoo", ModuleType("pettingzoo"))
    monkeypatch.setitem(sys.modules, "pettingzoo.sticks_v0", SimpleNamespace(env=Sticks))  # type: ignore[arg-type]
    config = EnvironmentConfig(result=result)
    game = PettingZooEnvironment("sticks_v0", config, observe=lambda env, seen: "", act=lambda env, text: int(text))
    game.ask = lambda who, messages: "Hm."  # type: ignore[method-assign]
    return game


@pytest.mark.parametrize(("reward", "is_success"), [(1.0, True), (0.0, False), (-1.0, False)])
def test_a_game_is_a_success_if_it_is_won(monkeypatch: pytest.MonkeyPatch, reward: float, is_success: bool) -> None:
    game = sticks(monkeypatch, reward)
    game.reset(seed=1)
    game.step("1")
    *_, about = game.step("2")
    assert about == {"drawn_moves": 2, "success": is_success}


def test_drawn_moves_follow_from_the_seed_of_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(seed: int) -> list[int]:
        game = sticks(monkeypatch)
        game.reset(seed=seed)
        game.step("1")
        game.step("2")
        return game.env.moves[1::2]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
