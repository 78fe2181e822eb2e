"""Calls a scoring function in the way that it was written for: turnsmith's, TRL's or verl's.

- turnsmith: `score(response, answer)`; `task`, the whole row, too if it has such a parameter
- TRL: `reward(prompts, completions, **columns)`, all of them lists, of one here
- verl: `compute_score(data_source, solution_str, ground_truth, extra_info)`

Which of them it is follows from the names of its parameters. Any may be async.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnsmith.env.adapters.answers import shipped_scorer
from turnsmith.errors import EnvironmentFailure
from turnsmith.importing import import_object

VERL_DEFAULT = "verl.utils.reward_score:default_compute_score"
"""verl's own choice of a scoring function by `data_source`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One answer of the model to one row."""

    prompt: Any
    """As the row has it: a text, or a list of messages."""
    response: str
    answer: Any
    task: Mapping[str, Any]


def find_scorer(reward: Any) -> Callable[[Scored], Any]:
    """What scores an answer, from a function, `module:function`, or the name of one that ships with turnsmith.

    Example:
        >>> find_scorer("exact")(Scored("Name a colour.", "red", "red", {}))
        1.0
        >>> find_scorer(lambda completions, **_: [len(one) for one in completions])(Scored("", "red", None, {}))
        3
    """
    function: Any = reward
    if isinstance(reward, str):
        function = import_object(reward) if ":" in reward else shipped_scorer(reward)
    parameters = inspect.signature(function).parameters
    if "completions" in parameters:
        return lambda scored: _call_trl(function, scored, parameters)
    if "solution_str" in parameters:
        return lambda scored: _call_verl(function, scored)
    if "task" in parameters:
        return lambda scored: function(scored.response, scored.answer, task=scored.task)
    return lambda scored: function(scored.response, scored.answer)


def _call_trl(function: Any, scored: Scored, parameters: Mapping[str, inspect.Parameter]) -> Any:
    is_conversation = not isinstance(scored.prompt, str)
    completion = [{"role": "assistant", "content": scored.response}] if is_conversation else scored.response
    given = {**scored.task, "prompts": scored.prompt, "completions": completion}
    given.pop("prompt", None)
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    returned = function(**{name: [value] for name, value in given.items()})
    return _first_later(returned) if inspect.isawaitable(returned) else _first(returned)


async def _first_later(returned: Awaitable[Any]) -> Any:
    return _first(await returned)


def _first(rewards: Any) -> Any:
    if not isinstance(rewards, Sequence) or len(rewards) != 1:
        raise EnvironmentFailure(f"The reward function returned {str(rewards)[:80]}, not a list with one reward.")
    return rewards[0]


def _call_verl(function: Any, scored: Scored) -> Any:
    return function(
        data_source=scored.task.get("data_source"),
        solution_str=scored.response,
        ground_truth=scored.answer,
        extra_info=scored.task.get("extra_info"),
    )
