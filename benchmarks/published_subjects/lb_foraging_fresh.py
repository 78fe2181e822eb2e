"""semitable/lb-foraging: two players with one mind, who pick up food together."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

MOVES = ("none", "north", "south", "west", "east", "load")


def _module() -> Any:
    """The environment's module; the package registers thousands of sizes and has a window of its own."""
    for name in ("lbforaging", "lbforaging.foraging"):
        package = ModuleType(name)
        package.__path__ = [f"{place}/{name.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(name, package)
    from lbforaging.foraging import environment

    return environment


def _game() -> Any:
    settings = {
        "players": 2, "min_player_level": [1, 1], "max_player_level": [2, 4], "min_food_level": 1,
        "max_food_level": None,
        "field_size": (6, 6), "max_num_food": 2, "sight": 6, "max_episode_steps": 30, "force_coop": False,
    }  # fmt: skip
    return _module().ForagingEnv(**settings)


class Foraging(BaseEnvironment):
    """A field of six by six with two players and two pieces of food."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.game = _game()
        self.game.reset(seed=seed)
        return self._shown()

    def get_prompt_prefix(self) -> str:
        return (
            "Two players pick up food. A piece of food is picked up when the levels of the players who stand next to "
            f"it and load are at least its own. Answer with two words, one for each player: {', '.join(MOVES)}."
        )

    def step(self, action: str) -> Any:
        words = action.split()
        if len(words) != 2 or any(word not in MOVES for word in words):
            return f"Answer with two of the words {', '.join(MOVES)}.", 0.0, False, {"invalid_action": True}
        self.game.step([MOVES.index(word) for word in words])
        reward = sum(player.reward for player in self.game.players)
        return self._shown(), float(reward), bool(self.game.game_over), {}

    def _shown(self) -> str:
        field = "\n".join(" ".join(str(int(cell)) for cell in row) for row in self.game.field)
        players = "; ".join(
            f"player {number} of level {int(player.level)} in row {int(player.position[0])}, "
            f"column {int(player.position[1])}"
            for number, player in enumerate(self.game.players)
        )
        return f"Food by its level, 0 is none:\n{field}\n{players}"


def _seed_does_not_hold() -> bool:
    import numpy as np

    seen = set()
    for other in range(6):
        np.random.seed(other)
        seen.add(Foraging().reset(seed=3))
    return len(seen) > 1


_HERE = "published_subjects.lb_foraging_fresh"
_LONG = ("environment.max_steps=30", "inference.max_turns=30", "inference.max_episode_tokens=16384")
SUBJECTS = {
    "lb-foraging-seed": Subject((f"{_HERE}:Foraging", *_LONG), _seed_does_not_hold),
}
