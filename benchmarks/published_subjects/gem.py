"""axon-rl/gem: games as text, with Gymnasium's five-tuple."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment


class GuessTheNumber(BaseEnvironment):
    """The game as gem makes it, behind turnsmith's two methods."""

    reward_range = (-1.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from gem.envs.textarena.guess_the_number import GuessTheNumberEnv

        self.game = GuessTheNumberEnv(min_number=1, max_number=20, max_turns=10)
        return self.game.reset(seed=seed)[0]

    def step(self, action: str) -> Any:
        return self.game.step(action)

    def solve(self) -> str:
        return f"\\boxed{{{self.game.game_number}}}"


def _wrong_guesses_are_paid() -> bool:
    from gem.envs.textarena.guess_the_number import GuessTheNumberEnv

    game = GuessTheNumberEnv(min_number=1, max_number=20, max_turns=10)
    game.reset(seed=1)
    wrong = [number for number in range(1, 21) if number != game.game_number]
    return game.step(f"\\boxed{{{wrong[0]}}}")[1] > 0


SUBJECTS = {
    "gem-guess-the-number-hints": Subject(("published_subjects.gem:GuessTheNumber",), _wrong_guesses_are_paid),
}
