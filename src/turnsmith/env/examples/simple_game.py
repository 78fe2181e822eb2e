"""A small text game: walk, pick things up, complete the quest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.base import BaseEnvironment

MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
ITEMS = {(0, 1): "lamp", (1, 0): "rope", (1, 1): "sword"}
"""What lies where."""


class SimpleGameEnvironment(BaseEnvironment):
    """A world of `size` steps to each side (2 unless told). The quest asks for one item: find it, then complete it.

    A step onto a new place pays 0.1, an item 0.5, the quest 10; what makes no sense costs 0.1 and is told.

    Example:
        >>> game = SimpleGameEnvironment({"max_steps": 8})
        >>> game.reset()
        'You are at (0, 0). You carry nothing. Quest: bring the sword, then say "complete quest".'
        >>> for action in ("move north", "move east", "pick up sword"):
        ...     observation, reward, done, info = game.step(action)
        >>> observation
        'You take the sword. You are at (1, 1). You carry sword. Quest: bring the sword, then say "complete quest".'
        >>> game.step("complete quest")[1:]
        (10.0, True, {'success': True})
    """

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.size: int = self.config.get("size", 2)
        self.goal: str = self.config.get("goal", "sword")
        self.position: tuple[int, int] = (0, 0)
        self.inventory: list[str] = []
        self.visited: set[tuple[int, int]] = {(0, 0)}

    def reset(self) -> str:
        """Start at the origin with empty hands."""
        self.position, self.inventory, self.visited = (0, 0), [], {(0, 0)}
        self.step_count, self.done = 0, False
        return self.get_state_description()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Do one thing that `action` asks for."""
        self.step_count += 1
        words = action.lower()
        if "complete quest" in words:
            told, reward = self._complete()
        elif "pick up" in words:
            told, reward = self._pick_up()
        elif way := next((name for name in MOVES if f"move {name}" in words), None):
            told, reward = self._move(way)
        else:
            told, reward = "You can: move north, south, east or west; pick up; complete quest.", -0.1
        info = {"success": True} if self.done else {"invalid_action": True} if reward < 0 else {}
        return f"{told} {self.get_state_description()}", reward, self.done, info

    def get_state_description(self) -> str:
        """Place, inventory and quest."""
        lying = ITEMS.get(self.position)
        here = f" There is a {lying} here." if lying and lying not in self.inventory else ""
        carried = ", ".join(self.inventory) or "nothing"
        quest = f'Quest: bring the {self.goal}, then say "complete quest".'
        return f"You are at {self.position}.{here} You carry {carried}. {quest}"

    def get_prompt_prefix(self) -> str:
        """The rules."""
        return "You play a text game. Answer with one action: move north/south/east/west, pick up, or complete quest."

    def _move(self, way: str) -> tuple[str, float]:
        place = self.position[0] + MOVES[way][0], self.position[1] + MOVES[way][1]
        if max(map(abs, place)) > self.size:
            return "A wall is in the way.", -0.1
        self.position = place
        new = place not in self.visited
        self.visited.add(place)
        return f"You go {way}.", 0.1 if new else 0.0

    def _pick_up(self) -> tuple[str, float]:
        item = ITEMS.get(self.position)
        if item is None or item in self.inventory:
            return "There is nothing to pick up.", -0.1
        self.inventory.append(item)
        return f"You take the {item}.", 0.5

    def _complete(self) -> tuple[str, float]:
        if self.goal not in self.inventory:
            return f"You do not have the {self.goal} yet.", -0.1
        self.done = True
        return "The quest is complete.", 10.0
