"""Tasks of reasoning-gym: `reasoning_gym:leg_counting`. Each seed is another question, with its answer and scorer."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.final_answers import final_answer
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ConfigError, MissingDependency, describe_failure
from turnsmith.importing import install_line

_known = set[str]()
"""Tasks with settings that can be made."""
SCORER_ERROR = "scorer_error"
"""In the info of an answer that the task's own scorer raised for, and that got 0: with what it raised."""


class ReasoningGymEnvironment(BaseEnvironment):
    """One question of a reasoning-gym task, answered in one turn.

    The reward is what the task's own scorer gives to the final answer in the response (`<answer>...</answer>`,
    `\\boxed{...}`, after `####` or `Answer:`, else all of it). Most of its scorers also pay a little for a longer text
    that contains the right answer; `environment.exact=true` pays for nothing but a full score.

    Args:
        name: The name of the task.
        config: Settings of your own are those of the task (`environment.min_animals=2`).
        exact: Whether a reward below 1 counts as 0.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self, name: str, config: EnvironmentConfig | Mapping[str, Any] | None = None, *, exact: bool = False
    ) -> None:
        super().__init__(config)
        self.name, self.exact = name, exact
        self.settings = self.config.own_settings()
        self.settings.pop("exact", None)
        self.module = _import()
        if name == "composite":
            kind = import_module("reasoning_gym.composite").DatasetSpec
            self.settings["datasets"] = [kind(**{"config": {}, **one}) for one in self.settings.get("datasets", ())]
        if (asked := f"{name} {self.settings}") not in _known:  # some read their words from files
            self._dataset(0)  # raises if there is no such task or setting
            _known.add(asked)

    def reset(self, seed: int = 0) -> str:
        """The question of this seed."""
        self.dataset = self._dataset(seed)
        self.entry = self.dataset[0]
        return str(self.entry["question"])

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer."""
        info: dict[str, Any] = {}
        try:
            reward = float(self.dataset.score_answer(final_answer(action), self.entry))
        except Exception as error:
            # Some scorers raise for an answer that they can't read. One that can't score the right answer is broken.
            self.dataset.score_answer(self.entry["answer"], self.entry)
            reward, info[SCORER_ERROR] = 0.0, describe_failure("its scorer", error)
        info["success"] = reward >= 1
        return "", float(reward >= 1) if self.exact else reward, True, info

    def solve(self) -> str | None:
        """The task's own answer; a few tasks have none."""
        answer = self.entry["answer"]
        if answer is None:
            answer = self.entry.get("metadata", {}).get("example_correct_answer")
        return None if answer is None else str(answer)

    def _dataset(self, seed: int) -> Any:
        """The only row of this seed: reasoning-gym draws rows from the sum of seed and row number."""
        try:
            return self.module.create_dataset(self.name, seed=seed, size=1, **self.settings)
        except ValueError as error:
            known = list(self.module.factory.DATASETS)
            close = get_close_matches(self.name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close and self.name not in known else ""
            raise ConfigError(f"reasoning-gym has no task for reasoning_gym:{self.name}: {error}.{hint}") from None
        except (TypeError, AssertionError) as error:
            raise ConfigError(f"reasoning_gym:{self.name} cannot be made with these settings: {error}") from None


def _import() -> Any:
    try:
        return import_module("reasoning_gym")
    except ImportError as error:
        raise MissingDependency(f"Its tasks need reasoning-gym ({error}): {install_line('reasoning-gym')}.") from error
