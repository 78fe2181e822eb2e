"""mpSchrader/gym-sokoban: a small room in text, with the package's own steps and rewards."""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

MOVES = ("push up", "push down", "push left", "push right", "up", "down", "left", "right")


def _game() -> Any:
    """A room of seven by seven with two boxes. Images are drawn by a part of scipy that is gone: nothing is drawn."""
    import scipy

    scipy.misc = sys.modules.setdefault("scipy.misc", ModuleType("scipy.misc"))
    for name in ("gym_sokoban", "gym_sokoban.envs"):
        package = ModuleType(name)
        package.__path__ = [f"{place}/{name.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(name, package)
    from gym_sokoban.envs import sokoban_env

    sokoban_env.room_to_rgb = lambda *_: None
    return sokoban_env.SokobanEnv(dim_room=(7, 7), max_steps=30, num_boxes=2)


class Sokoban(BaseEnvironment):
    """Boxes to be pushed on targets."""

    def reset(self, seed: int = 0) -> str:
        import numpy as np

        random.seed(seed)
        np.random.seed(seed)
        self.game = _game()
        return self._shown()

    def get_prompt_prefix(self) -> str:
        return (
            "Push the boxes (x) on the targets (.); X is a box on its target, @ is you, # is wall. The room is shown "
            f"after each step. Answer with one of: {', '.join(MOVES)}."
        )

    def step(self, action: str) -> Any:
        if action.strip() not in MOVES:
            return f"Answer with one of: {', '.join(MOVES)}.", 0.0, False, {"invalid_action": True}
        _, reward, done, info = self.game.step(MOVES.index(action.strip()))
        return self._shown(), float(reward), bool(done), info

    def _shown(self) -> str:
        rows = ([int(cell) for cell in row] for row in self.game.room_state)
        return "\n".join("".join("# .Xx@"[cell] for cell in row) for row in rows)


def _never_ends() -> bool:
    game = Sokoban()
    game.reset(seed=1)
    return not any(game.step("up")[2] for _ in range(30))


def _move_earns_what_the_push_did() -> bool:
    """A push to the right on the target, then a move back."""
    import numpy as np

    game = Sokoban()
    game.reset(seed=1)
    game.game.room_fixed = np.array([[0] * 6, [0, 1, 1, 2, 1, 0], [0, 1, 1, 1, 2, 0], [0] * 6])
    game.game.room_state = np.array([[0] * 6, [0, 5, 4, 2, 1, 0], [0, 1, 4, 1, 2, 0], [0] * 6])
    game.game.player_position = np.array([1, 1])
    return game.step("push right")[1] > 0 and game.step("left")[1] > 0


_HERE = "published_subjects.gym_sokoban_fresh"
_LONG = ("environment.max_steps=40", "inference.max_turns=40", "inference.max_episode_tokens=16384")
SUBJECTS = {
    "gym-sokoban-step-limit": Subject((f"{_HERE}:Sokoban", *_LONG), _never_ends),
    "gym-sokoban-kept-reward": Subject((f"{_HERE}:Sokoban", *_LONG), _move_earns_what_the_push_did),
}
