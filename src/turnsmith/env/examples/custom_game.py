"""The game of the architecture document, finished: a small field, things that lie in it, and a quest that needs one."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.base import BaseEnvironment

WAYS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


class CustomGameEnvironment(BaseEnvironment):
    """Find the `quest` item (a sword unless told) in a field of `size` places to each side (1 unless told).

    A place not seen before pays 0.1, an item 0.5, the quest 10; what cannot be done costs 0.1. A place pays only once,
    or walking to and fro would be worth more than the quest. The seed decides where the `items` lie.

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
        self.seen = {(0, 0)}

    def reset(self, seed: int = 0) -> str:
        """Lay the items out and stand in the middle with empty hands."""
        self.score, self.step_count, self.done = 0, 0, False
        self.inventory, self.position, self.seen = [], (0, 0), {(0, 0)}
        reach = range(-self.size, self.size + 1)
        places = [(x, y) for x in reach for y in reach if (x, y) != (0, 0)]
        names = dict.fromkeys([self.quest, *self.config.get("items", ["lamp"])])
        self.items = dict(zip(names, random.Random(seed).sample(places, len(names)), strict=True))
        return self.get_state_description()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Do one action: `move north`, `pick up sword`, `complete quest`."""
        self.step_count += 1
        words = action.lower()
        way = next((name for name in WAYS if f"move {name}" in words), None)
        item = next((name for name in self.items if f"pick up {name}" in words), None)
        if way:
            reward = self._move(way)
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
        """All there is to know, one line each."""
        lines = {
            "Position": self.position,
            "Score": self.score,
            "Inventory": ", ".join(self.inventory) or "empty",
            "Items": ", ".join(f"{name} at {place}" for name, place in self.items.items()) or "none",
            "Quest": f"bring the {self.quest}",
            "Steps remaining": self.max_steps - self.step_count,
        }
        return "\n- ".join(["Game State:", *(f"{name}: {value}" for name, value in lines.items())])

    def get_prompt_prefix(self) -> str:
        """The rules."""
        return "You play a game. Answer with one action: move north/south/east/west, pick up <item>, complete quest."

    def _move(self, way: str) -> float:
        place = self.position[0] + WAYS[way][0], self.position[1] + WAYS[way][1]
        if max(map(abs, place)) > self.size:
            return -0.1
        new = place not in self.seen
        self.position = place
        self.seen.add(place)
        return 0.1 if new else 0.0
