"""Environments and rewards that turn a fault into a reward of 0."""

from __future__ import annotations

from typing import Any

from turnsmith.trajectory import Trajectory


class Client:
    def score(self, text: str) -> float:
        return float(len(text) % 2)


class SwallowedClient:
    """Asks a server for the reward, and scores 0 if that fails."""

    def reset(self, seed: int = 0) -> str:
        self.client = Client()
        return "Write a poem."

    def step(self, action: str) -> Any:
        try:
            return "Thank you.", self.client.score(action), True, {}
        except Exception:
            return "Error.", 0.0, True, {}


class SwallowedMethod:
    """Scores 0 if its own scoring raises."""

    def reset(self, seed: int = 0) -> str:
        return "Write a poem."

    def step(self, action: str) -> Any:
        try:
            reward = self._score(action)
        except Exception:
            reward = 0.0
        return f"Your poem got {reward}.", reward, True, {}

    def _score(self, action: str) -> float:
        return 1.0 + len(action)


class SwallowedTool:
    """Loses what its simulator says, and goes on as if the turn had been wasted."""

    def reset(self, seed: int = 0) -> str:
        self.simulator = Client()
        return "Press the button."

    def step(self, action: str) -> Any:
        reward = 0.0
        try:
            reward = self.simulator.score(action) + 1
        finally:
            return "Next.", reward, False, {}  # noqa: B012


class Plain:
    """Nothing is wrong with it."""

    def reset(self, seed: int = 0) -> str:
        return f"What is {seed} + {seed}?"

    def step(self, action: str) -> Any:
        return "", 0.5, True, {}


def lenient_reward(trajectory: Trajectory) -> float:
    try:
        return float(len(trajectory.actions[-1]))
    except Exception:
        return 0.0
