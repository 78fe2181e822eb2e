"""mll-lab-nu/RAGEN: its environment of questions of mathematics, with rows of our own in place of the download."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import problems
from turnsmith import BaseEnvironment


def _rows() -> list[dict[str, str]]:
    """As MetaMathQA: solutions that end with the answer, but for a few that stop before it."""
    made = []
    for number, one in enumerate(problems(24)):
        ending = "" if number % 8 == 5 else f"\nThe answer is: {one.answer}"
        made.append({"query": one.question, "response": f"{one.worked}{ending}"})
    return made


def _game() -> Any:
    """The environment, without its package's others, which need simulators."""
    package = ModuleType("ragen.env")
    package.__path__ = [f"{place}/ragen/env" for place in sys.path]
    sys.modules.setdefault("ragen.env", package)
    from ragen.env.metamathqa import env as module
    from ragen.env.metamathqa.config import MetaMathQAEnvConfig

    module.load_dataset = lambda **_: {"train": _rows()}
    return module.MetaMathQAEnv(MetaMathQAEnvConfig())


class MetaMath(BaseEnvironment):
    """One question, in up to four attempts that are worth half as much each time."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.game = _game()
        self.tries = 0
        return f"{self.game.reset(seed=seed)}\nAnswer with the final result only."

    def step(self, action: str) -> Any:
        self.tries += 1
        seen, reward, done, info = self.game.step(action)
        return seen, reward, done or self.tries == 4, info

    def solve(self) -> str | None:
        return self.game.correct_answer


def _verdict_is_unset() -> bool:
    game = _game()
    game.correct_answer = None
    try:
        game._check_answer("7")
    except UnboundLocalError:
        return True
    return False


SUBJECTS = {
    "ragen-metamath-label": Subject(("published_subjects.ragen_fresh:MetaMath",), _verdict_is_unset),
}
