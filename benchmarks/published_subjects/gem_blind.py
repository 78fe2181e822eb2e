"""axon-rl/gem: games by the names that gem registers them under."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment


class Game(BaseEnvironment):
    """A game as `gem.make` makes it, with the text that it wants after each observation."""

    name = ""

    def reset(self, seed: int = 0) -> str:
        import gem

        self.game = gem.make(self.name)
        observation, info = self.game.reset(seed=seed)
        return observation + info.get("suffix", "")

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = self.game.step(action)
        return observation + info.get("suffix", ""), reward, terminated, truncated, info


class FifteenPuzzle(Game):
    """Tiles on a board whose size is drawn."""

    name = "game:FifteenPuzzle-v0-random"


class GuessTheNumber(Game):
    """A number from 1 to 20, in ten turns."""

    name = "ta:GuessTheNumber-v0"

    def solve(self) -> str:
        return f"\\boxed{{{self.game.game_number}}}"


def _cannot_be_built() -> bool:
    from gem.envs.game_env.fifteen_puzzle import FifteenPuzzleEnv

    try:
        game = FifteenPuzzleEnv(num_rows=None, max_turns=None)
    except TypeError:
        return True
    return game.greatest_num != game.num_rows**2 - 1


def _far_guess_has_no_floor() -> bool:
    from gem.envs.textarena.guess_the_number import GuessTheNumberEnv

    game = GuessTheNumberEnv(min_number=1, max_number=20, max_turns=1)
    game.reset(seed=1)
    return game.step(f"\\boxed{{{10**9}}}")[1] < -1000


_HERE = "published_subjects.gem_blind"
SUBJECTS = {
    "gem-fifteen-puzzle-random": Subject(
        (f"{_HERE}:FifteenPuzzle", "environment.max_steps=50", "inference.max_turns=50"), _cannot_be_built
    ),
    "gem-guess-the-number-range": Subject((f"{_HERE}:GuessTheNumber",), _far_guess_has_no_floor),
}
