"""axon-rl/gem: games as text, with Gymnasium's five-tuple."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics
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


class Mastermind(BaseEnvironment):
    """The game with a code of four digits, behind turnsmith's two methods."""

    def reset(self, seed: int = 0) -> str:
        from gem.envs.textarena.mastermind import MastermindEnv

        self.game = MastermindEnv(code_length=4, num_numbers=6, max_turns=20)
        return self.game.reset(seed=seed)[0]

    def step(self, action: str) -> Any:
        return self.game.step(action)

    def solve(self) -> str:
        return f"\\boxed{{{' '.join(map(str, self.game.game_code))}}}"


class Mathematics(BaseEnvironment):
    """gem's questions of mathematics from a data set of one's own."""

    reward_range = (0.0, 1.0)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.env = _math_env()

    def reset(self, seed: int = 0) -> str:
        return self.env.reset(seed=seed)[0]

    def step(self, action: str) -> Any:
        return self.env.step(action)

    def solve(self) -> str:
        return f"\\boxed{{{self.env.answer}}}"

    def close(self) -> None:
        self.env.close()


def _math_env() -> Any:
    from datasets import Dataset
    from gem.envs.math_env import MathEnv

    rows = [{"problem": f"{one.text} Put the answer into \\boxed{{}}.", "answer": one.answer} for one in mathematics()]
    return MathEnv(dataset=Dataset.from_list(rows))


def _wrong_guesses_are_paid() -> bool:
    from gem.envs.textarena.guess_the_number import GuessTheNumberEnv

    game = GuessTheNumberEnv(min_number=1, max_number=20, max_turns=10)
    game.reset(seed=1)
    wrong = [number for number in range(1, 21) if number != game.game_number]
    return game.step(f"\\boxed{{{wrong[0]}}}")[1] > 0


def _a_shorter_guess_raises() -> bool:
    from gem.envs.textarena.mastermind import MastermindEnv

    game = MastermindEnv()
    game.reset(seed=1)
    try:
        game.step("\\boxed{1 2 3}")
    except IndexError:
        return True
    return False


def _a_seed_gives_two_questions() -> bool:
    env = _math_env()
    questions = {env.reset(seed=3)[0] for _ in range(3)}
    env.close()
    return len(questions) > 1


SUBJECTS = {
    "gem-guess-the-number-hints": Subject(("published_subjects.gem:GuessTheNumber",), _wrong_guesses_are_paid),
    "gem-mastermind-length": Subject(
        ("published_subjects.gem:Mastermind", "environment.max_steps=20", "inference.max_turns=20"),
        _a_shorter_guess_raises,
    ),
    "gem-reset-seed": Subject(("published_subjects.gem:Mathematics",), _a_seed_gives_two_questions),
}
