"""Rows of a data file as an environment: the model answers a question in one turn, and a function scores the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.batch_rewards import check_alone
from turnsmith.env.adapters.scorers import VERL_DEFAULT, Scored, find_scorer, score
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ConfigError, EnvironmentFailure

PROMPTS = ("prompt", "question", "problem", "instruction", "input", "messages")
ANSWERS = ("answer", "reward_model.ground_truth", "ground_truth", "solution", "target", "label")


_IN_AN_ANSWER = ("target", "answer", "answers", "ground_truth", "value", "text")


class QuestionAnswer(BaseEnvironment):
    """One turn for each row of a dataset: its question, the model's answer, a reward.

    Args:
        config: May also have `system`, a system prompt for rows without one.
        prompt: The column of the question, a text or a list of messages; empty: the first of `prompt`, `question`,
            `problem`, `instruction`, `input` and `messages` that a row has.
        answer: The column of the right answer, with dots for columns in columns; empty: the first of `answer`,
            `reward_model.ground_truth`, `ground_truth`, `solution`, `target` and `label` that a row has, or the
            assistant's message at the end of the prompt.
        reward: `exact`, `number`, `math`, `choice`, `regex`, `json_schema` or `tests`; a function of your own, or
            `module:function`, with `(response, answer)` or verl's or TRL's parameters; or several, whose rewards are
            added up. Empty: what verl scores the row's `data_source` with, if it has one, else `exact`.

    Example:
        >>> environment = QuestionAnswer(reward="number")
        >>> environment.reset(task={"question": "2 + 2?", "answer": "4"})
        '2 + 2?'
        >>> environment.step("It is 4.").reward
        1.0
    """

    made: Any = None
    """The object that is played, if it was made for TRL's `environment_factory`."""

    def __init__(
        self,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        prompt: str = "",
        answer: str = "",
        reward: Any = (),
    ) -> None:
        super().__init__(config)
        self.prompt_column, self.answer_column = prompt, answer
        rewards: list[Any] = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
        self.scorers = [find_scorer(reward) for reward in rewards if reward]
        self.scored_by = {reward for reward in rewards if isinstance(reward, str)}
        self.system = str(self.config.get("system", ""))

    def reset(self, task: Mapping[str, Any] | None = None) -> str | list[dict[str, str]]:
        """The question of the row; a list of messages if it shows the model examples."""
        if not task:
            raise EnvironmentFailure("QuestionAnswer plays the rows of a dataset, and there is none: pass --data FILE.")
        messages = self.take_answer(task, has_prompt=True)
        if messages[0]["role"] == "system":
            self.system = messages.pop(0)["content"]
        if all(message["role"] == "user" for message in messages):
            return "\n\n".join(message["content"] for message in messages)
        return messages

    def take_answer(self, task: Mapping[str, Any], *, has_prompt: bool = False) -> list[dict[str, str]]:
        """Keep the row for scoring; returns the prompt, which an agent's row need not have."""
        self.task = task
        default = [] if self.made is not None else [VERL_DEFAULT if "data_source" in task else "exact"]
        self.scoring = self.scorers or list(map(find_scorer, default))
        prompt = _column(task, self.prompt_column, PROMPTS, "prompt", is_needed=has_prompt) or ""
        is_plain = isinstance(prompt, str) or not has_prompt
        messages = [{"role": "user", "content": prompt}] if is_plain else _read_messages(prompt)
        last = messages.pop()["content"] if messages[-1]["role"] == "assistant" else None
        if last is not None:
            prompt = list(prompt)[:-1]
        is_needed = last is None and any(scorer.needs_answer for scorer in self.scoring)
        answer = _column(task, self.answer_column, ANSWERS, "answer", is_needed=is_needed)
        self.scored = Scored(prompt, "", last if answer is None else answer, task, bool(self.answer_column), self.made)
        for scorer in self.scoring:
            scorer.check(self.scored)
        return messages

    def check_tasks(self, tasks: Iterable[Mapping[str, Any]], *, has_prompt: bool = True) -> None:
        """Raise a ConfigError if a row cannot be played, or if a reward depends on the other answers of its list."""
        is_checked = set[tuple[str, Any]]()
        for number, task in enumerate(tasks):
            try:
                self.take_answer(task, has_prompt=has_prompt)
                for scorer in self.scoring:
                    scorer.check_answer(self.scored.answer)
                    kind = scorer.name, str(task.get("data_source"))
                    if kind not in is_checked and self.made is None:
                        is_checked.add(kind)
                        check_alone(scorer, self.scored)
            except (ConfigError, EnvironmentFailure) as error:
                raise ConfigError(f"Row {number} of the data: {error}") from None

    def get_prompt_prefix(self) -> str:
        """The system prompt."""
        return self.system

    def step(self, action: str) -> Any:
        """Score the answer."""
        return score(self.scoring, replace(self.scored, response=action))

    def solve(self) -> str | None:
        """The row's answer, unless it is a regular expression, a JSON schema or a program, which no model would say."""
        if self.scored_by & {"regex", "json_schema", "tests"} or self.scored.answer is None:
            return None
        answer = self.scored.answer
        if isinstance(answer, Mapping):  # verl's search rows have {"target": ["Paris"]}
            answer = next((answer[name] for name in _IN_AN_ANSWER if name in answer), None)
            answer = answer[0] if isinstance(answer, Sequence) and not isinstance(answer, str) and answer else answer
        return None if answer is None else str(answer)


def column_of(task: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A column of a row, with dots for columns in columns; the default if it is missing.

    Example:
        >>> column_of({"reward_model": {"ground_truth": "4"}}, "reward_model.ground_truth")
        '4'
    """
    found: Any = task
    for part in name.split("."):
        found = found.get(part, default) if isinstance(found, Mapping) else default
    return found


def _column(task: Mapping[str, Any], named: str, usual: Sequence[str], what: str, *, is_needed: bool = True) -> Any:
    """The value in the named column, or in the first usual column that the row has."""
    for name in (named,) if named else usual:
        found = column_of(task, name, _ABSENT)
        if found is not _ABSENT and (found is not None or (named and not is_needed)):
            return found
    if not is_needed and not named:
        return None
    nested = [f"{name}.{inner}" for name, value in task.items() if isinstance(value, Mapping) for inner in value]
    close = get_close_matches(named, [*task, *nested], n=1) if named else []
    looked = " or ".join(map(repr, (named,) if named else usual))
    advice = f"Did you mean {close[0]!r}?" if close else f"Pass --{what} COLUMN."
    raise EnvironmentFailure(f"The row has no column {looked} for its {what}; it has {', '.join(task)}. {advice}")


_ABSENT: Any = object()


def _read_messages(messages: Any) -> list[dict[str, str]]:
    """The messages of a prompt, with a system message at most at the beginning."""
    if not isinstance(messages, Sequence) or not messages or not all(isinstance(row, Mapping) for row in messages):
        raise EnvironmentFailure(f"The prompt {str(messages)[:80]!r} is neither a text nor a list of messages.")
    roles = ["system" if one.get("role") == "developer" else str(one.get("role")) for one in messages]
    later = roles[roles[0] == "system" :]
    if set(later) - {"user", "assistant"} or "user" not in later:
        raise EnvironmentFailure(
            f"The prompt has messages of {', '.join(roles)}: a system message and then those of user and assistant can "
            "be played."
        )
    read = [{"role": role, "content": _text(one.get("content"))} for role, one in zip(roles, messages, strict=True)]
    return read if read[0]["content"] or roles[0] != "system" else read[1:]


def _text(content: Any) -> str:
    """A message's content, which OpenAI's format may split into parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) else [content]
    kinds = {str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__ for part in parts}
    if kinds - {"text"}:
        raise EnvironmentFailure(
            f"A message of the prompt has parts of {', '.join(sorted(kinds))}: only text can be played."
        )
    return "".join(str(part.get("text") or "") for part in parts)
