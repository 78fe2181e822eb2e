"""A small text game: move around, pick up items, complete the quest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.base import BaseEnvironment

MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
ITEMS = {(0, 1): "lamp", (1, 0): "rope", (1, 1): "sword"}
"""The position of each item."""


class SimpleGameEnvironment(BaseEnvironment):
    """A grid that reaches `size` steps in each direction (default 2). The quest: find the `goal` item (default sword).

    Rewards: 0.1 for each new position, 0.5 for an item, 10 for the quest, -0.1 for an invalid action.

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
        """Start at the origin, carrying nothing."""
        self.position, self.inventory, self.visited = (0, 0), [], {(0, 0)}
        self.step_count, self.done = 0, False
        return self.get_state_description()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Do the first action that the model's text names."""
        self.step_count += 1
        words = action.lower()
        if "complete quest" in words:
            message, reward = self._complete()
        elif "pick up" in words:
            message, reward = self._pick_up()
        elif direction := next((name for name in MOVES if f"move {name}" in words), None):
            message, reward = self._move(direction)
        else:
            message, reward = "You can: move north, south, east or west; pick up; complete quest.", -0.1
        info = {"success": True} if self.done else {"invalid_action": True} if reward < 0 else {}
        return f"{message} {self.get_state_description()}", reward, self.done, info

    def get_state_description(self) -> str:
        """Position, inventory and quest."""
        item = ITEMS.get(self.position)
        here = f" There is a {item} here." if item and item not in self.inventory else ""
        carried = ", ".join(self.inventory) or "nothing"
        quest = f'Quest: bring the {self.goal}, then say "complete quest".'
        return f"You are at {self.position}.{here} You carry {carried}. {quest}"

    def solve(self) -> list[str]:
        """Walk to the item from the origin, take it, and complete the quest."""
        x, y = next(place for place, item in ITEMS.items() if item == self.goal)
        moves = ["move east" if x > 0 else "move west"] * abs(x) + ["move north" if y > 0 else "move south"] * abs(y)
        return [*moves, "pick up", "complete quest"]

    def get_prompt_prefix(self) -> str:
        """The rules."""
        return "You play a text game. Answer with one action: move north/south/east/west, pick up, or complete quest."

    def _move(self, direction: str) -> tuple[str, float]:
        position = self.position[0] + MOVES[direction][0], self.position[1] + MOVES[direction][1]
        if max(map(abs, position)) > self.size:
            return "A wall is in the way.", -0.1
        self.position = position
        is_new = position not in self.visited
        self.visited.add(position)
        return f"You go {direction}.", 0.1 if is_new else 0.0

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
