"""The game that the specification sketches, completed: a small grid with items, and a quest that needs one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.base import BaseEnvironment

MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


class CustomGameEnvironment(BaseEnvironment):
    """Find the `quest` item (default sword) on a grid that reaches `size` steps in each direction (default 1).

    Rewards: 0.1 for each new position, 0.5 for an item, 10 for the quest, -0.1 for an invalid action. A position pays
    only once; otherwise walking back and forth would be worth more than the quest. The seed places the `items`.

    Example:
        >>> game = CustomGameEnvironment({"max_steps": 5})
        >>> print(game.reset(seed=3))
        Game State:
        - Position: (0, 0)
        - Score: 0
        - Inventory: empty
        - Items: sword at (0, -1), lamp at (0, 1)
        - Quest: bring the sword
        - Steps remaining: 5
        >>> [game.step(action)[1] for action in ("move south", "pick up sword", "complete quest")]
        [0.1, 0.5, 10.0]
    """

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.size = int(self.config.get("size", 1))
        self.quest = str(self.config.get("quest", "sword"))
        self.score = 0
        self.inventory: list[str] = []
        self.position = (0, 0)
        self.items: dict[str, tuple[int, int]] = {}
        self.visited = {(0, 0)}

    def reset(self, seed: int = 0) -> str:
        """Place the items, and start in the middle, carrying nothing."""
        self.score, self.step_count, self.done = 0, 0, False
        self.inventory, self.position, self.visited = [], (0, 0), {(0, 0)}
        reach = range(-self.size, self.size + 1)
        places = [(x, y) for x in reach for y in reach if (x, y) != (0, 0)]
        names = dict.fromkeys([self.quest, *self.config.get("items", ["lamp"])])
        self.items = dict(zip(names, random.Random(seed).sample(places, len(names)), strict=True))
        return self.get_state_description()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Do one action, such as `move north`, `pick up sword` or `complete quest`."""
        self.step_count += 1
        words = action.lower()
        direction = next((name for name in MOVES if f"move {name}" in words), None)
        item = next((name for name in self.items if f"pick up {name}" in words), None)
        if direction:
            reward = self._move(direction)
        elif item and self.items[item] == self.position:
            del self.items[item]
            self.inventory.append(item)
            reward = 0.5
        elif "complete quest" in words and self.quest in self.inventory:
            self.score, self.done = self.score + 10, True
            reward = 10.0
        else:
            reward = -0.1
        info = {"success": True} if self.done else {"invalid_action": True} if reward < 0 else {}
        return self.get_state_description(), reward, self.done, info

    def get_state_description(self) -> str:
        """The whole state, one fact per line."""
        lines = {
            "Position": self.position,
            "Score": self.score,
            "Inventory": ", ".join(self.inventory) or "empty",
            "Items": ", ".join(f"{name} at {place}" for name, place in self.items.items()) or "none",
            "Quest": f"bring the {self.quest}",
            "Steps remaining": self.max_steps - self.step_count,
        }
        return "\n- ".join(["Game State:", *(f"{name}: {value}" for name, value in lines.items())])

    def solve(self) -> list[str]:
        """Walk to the item from the middle, take it, and complete the quest."""
        x, y = self.items[self.quest]
        moves = ["move east" if x > 0 else "move west"] * abs(x) + ["move north" if y > 0 else "move south"] * abs(y)
        return [*moves, f"pick up {self.quest}", "complete quest"]

    def get_prompt_prefix(self) -> str:
        """The rules."""
        return "You play a game. Answer with one action: move north/south/east/west, pick up <item>, complete quest."

    def _move(self, direction: str) -> float:
        position = self.position[0] + MOVES[direction][0], self.position[1] + MOVES[direction][1]
        if max(map(abs, position)) > self.size:
            return -0.1
        is_new = position not in self.visited
        self.position = position
        self.visited.add(position)
        return 0.1 if is_new else 0.0
