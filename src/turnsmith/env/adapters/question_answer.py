"""Rows of a data file as an environment: the model answers a question in one turn, and a function scores the answer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.answers import SHIPPED
from turnsmith.env.adapters.scorers import VERL_DEFAULT, Scored, find_scorer
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import EnvironmentFailure
from turnsmith.step_result import StepResult

PROMPTS = ("prompt", "question", "problem", "instruction", "input")
ANSWERS = ("answer", "reward_model.ground_truth", "ground_truth", "solution", "target", "label")


class QuestionAnswer(BaseEnvironment):
    """One turn for each row of a dataset: its question, the model's answer, a reward.

    Args:
        config: May also have `system`, a system prompt for rows without one.
        prompt: The column of the question, a text or a list of messages; empty: the first of `prompt`, `question`,
            `problem`, `instruction` and `input` that a row has.
        answer: The column of the right answer, with dots for columns in columns; empty: the first of `answer`,
            `reward_model.ground_truth`, `ground_truth`, `solution`, `target` and `label` that a row has.
        reward: `exact`, `number`, `math`, `choice`, `regex`, `json_schema` or `tests`; a function of your own, or
            `module:function`, with TRL's or verl's parameters or `(response, answer)`; or several, whose rewards are
            added up. Empty: what verl scores the row's `data_source` with, if it has one, else `exact`.

    Example:
        >>> environment = QuestionAnswer(reward="number")
        >>> environment.reset(task={"question": "2 + 2?", "answer": "4"})
        '2 + 2?'
        >>> environment.step("It is 4.").reward
        1.0
    """

    def __init__(
        self,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        prompt: str = "",
        answer: str = "",
        reward: Any = (),
    ) -> None:
        super().__init__(config)
        self.prompt_columns = (prompt,) if prompt else PROMPTS
        self.answer_columns = (answer,) if answer else ANSWERS
        rewards: list[Any] = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
        self.scorers = [find_scorer(one) for one in rewards if one]
        self.scored_by = {one for one in rewards if isinstance(one, str)}
        self.needs_answer = not self.scorers or any(one in SHIPPED for one in rewards if isinstance(one, str))
        self.system = str(self.config.get("system", ""))

    def reset(self, task: Mapping[str, Any] | None = None) -> str:
        """The question of the row."""
        if not task:
            raise EnvironmentFailure("QuestionAnswer plays the rows of a dataset, and there is none: pass --data FILE.")
        prompt = question = _column(task, self.prompt_columns, "prompt")
        if not isinstance(prompt, str):
            self.system, question = _read_messages(prompt, self.system)
        self.take_answer(task)
        return question

    def take_answer(self, task: Mapping[str, Any]) -> None:
        """Keep the row and its right answer. Its prompt may be missing: an agent asks as it likes."""
        self.task = task
        self.prompt = _column(task, self.prompt_columns, "prompt", is_needed=False) or ""
        self.answer = _column(task, self.answer_columns, "answer", is_needed=self.needs_answer)

    def get_prompt_prefix(self) -> str:
        """The system prompt."""
        return self.system

    def step(self, action: str) -> Any:
        """Score the answer."""
        scored = Scored(self.prompt, action, self.answer, self.task)
        scorers = self.scorers or [find_scorer(VERL_DEFAULT if "data_source" in self.task else "exact")]
        values = [score(scored) for score in scorers]
        if any(inspect.isawaitable(value) for value in values):
            return _finish(values)
        return _result(values)

    def solve(self) -> str | None:
        """The row's answer, if it is what a model would say: not a regular expression, a JSON schema or a program."""
        if self.scored_by & {"regex", "json_schema", "tests"}:
            return None
        return None if self.answer is None else str(self.answer)


async def _finish(values: Sequence[Any]) -> StepResult:
    return _result([await value if inspect.isawaitable(value) else value for value in values])


def _result(values: Sequence[Any]) -> StepResult:
    total, info = 0.0, dict[str, Any]()
    for value in values:
        if isinstance(value, Mapping):  # verl: {"score": 1.0, "acc": True}
            info |= {str(name): one for name, one in value.items() if name != "score"}
            value = value.get("score")
        if value is None:
            raise EnvironmentFailure("The reward function returned no reward for this row.")
        total += float(value)
    return StepResult("", total, terminated=True, info=info)


def column_of(task: Mapping[str, Any], name: str) -> Any:
    """A column of a row, with dots for columns in columns; None if it has none.

    Example:
        >>> column_of({"reward_model": {"ground_truth": "4"}}, "reward_model.ground_truth")
        '4'
    """
    found: Any = task
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _column(task: Mapping[str, Any], names: Sequence[str], what: str, *, is_needed: bool = True) -> Any:
    for name in names:
        found = column_of(task, name)
        if found is not None:
            return found
    if not is_needed:
        return None
    looked = " or ".join(map(repr, names))
    raise EnvironmentFailure(
        f"The row has no column {looked} for its {what}; it has {', '.join(task)}. Pass --{what} COLUMN."
    )


def _read_messages(messages: Any, system: str) -> tuple[str, str]:
    """The system prompt and the question in a list of messages."""
    if not isinstance(messages, Sequence) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise EnvironmentFailure(f"The prompt {str(messages)[:80]!r} is neither a text nor a list of messages.")
    roles = [str(one.get("role")) for one in messages]
    first = roles[0] == "system"
    if set(roles[first:]) != {"user"}:
        raise EnvironmentFailure(
            f"The prompt has messages of {', '.join(roles)}: a system message and those of the user can be played."
        )
    texts = [str(one.get("content", "")) for one in messages]
    return (texts[0] if first else system), "\n\n".join(texts[first:])
