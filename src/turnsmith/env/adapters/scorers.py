"""Calls a scoring function with arguments by the names of its parameters: turnsmith's, verl's and TRL's.

- turnsmith: `score(response, answer)`, in any order and under other usual names; `task`, the whole row
- verl: `compute_score(data_source, solution_str, ground_truth, extra_info)`
- TRL: `reward(prompts, completions, **columns)`, all of them lists, of one here; verl's batches are lists too

Any other name is a column of the row. A function with other parameters is refused, and so is one of verl's that
would run a model's code. Any function may be async.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from typing import Any

from turnsmith.env.adapters.answers import shipped_scorer
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.importing import import_object
from turnsmith.tools.step_result import StepResult, to_reward

VERL_DEFAULT = "verl.utils.reward_score:default_compute_score"
"""verl's own choice of a scoring function by `data_source`."""
RESPONSES = ("response", "completion", "solution_str", "prediction", "pred", "output", "model_output", "predict_str")
ANSWERS = ("answer", "ground_truth", "gold", "gt", "target", "label", "solution", "reference", "golden_answers")
PROMPTS = ("prompt", "question", "problem", "instruction")
_LISTS = {
    "prompts": "prompt",
    "completions": "completion",
    "completion_ids": "completion_ids",
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
    "environments": "environment",
}
"""Parameters that are lists with an item for each response, and what an item is."""
_NEVER = {
    "completion_ids": "write a `reward_fn(trajectory)` instead, which has `trajectory.tokens`",
    "trainer_state": "it belongs to TRL's trainer",
}
_LOGS = ("log_extra", "log_metric")
_KNOWN = ("response", "answer", "prompt", "task", "data_source", "solution_str", "ground_truth", "extra_info", *_LISTS)
_MISSING: Any = object()
_PACKAGE = "verl.utils.reward_score"
_REASONS = {
    "math_verify": "scores 0 whatever its processes have not compared in time: use the reward `math`",
    "prime_math": "evaluates what the model wrote as Python (CVE-2026-6878): use the reward `math`",
    "prime_code": "runs the model's programs outside of a sandbox: use the reward `tests`, or `run_python` in your own",
    "sandbox_fusion": "runs the model's programs on a server of yours that it cannot be told: use the reward `tests`",
    "geo3k": "evaluates what the model wrote with sympy: use the reward `math`",
}
"""Why scoring functions of verl are never called, by their module in `_PACKAGE`: they would run a model's code, or
give 0 without a word."""
SOURCES = {
    **dict.fromkeys(("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime"), "prime_math"),
    **dict.fromkeys(("numina_synthetic_amc", "numina_cn_k12", "numina_olympiads"), "prime_math"),
    **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), "prime_code"),
    "hiyouga/geometry3k": "geo3k",
}
"""The data sources for which verl's `default_compute_score` chooses one of these modules."""


NO_REWARD = "The reward function returned no reward for this row."


@dataclass(frozen=True, slots=True)
class Scored:
    """One answer of the model to one row."""

    prompt: Any
    """As the row has it: a text, or a list of messages."""
    response: str
    answer: Any
    """None if the row has no answer."""
    task: Mapping[str, Any]
    is_named: bool = True
    """Whether the user named the answer's column; then no other column is the answer."""
    environment: Any = None
    """The object that was played, if it was made for TRL's `environment_factory`."""


@dataclass(frozen=True)
class Scorer:
    """A scoring function, and how it is called.

    Example:
        >>> Scorer("gold_first", lambda gold, pred: gold == pred)(Scored("1 + 1?", "2", "2", {}))
        (1.0, {})
    """

    name: str
    function: Callable[..., Any]
    check_answer: Callable[[Any], object] = str
    """Raises for an answer column that nothing can be compared with."""

    def __call__(self, scored: Scored) -> Any:
        """The reward and the info of one answer, see `read`; awaitable if the function is async."""
        logged: dict[str, Any] = {}
        returned = self.call([scored], logged)
        return self._read_later(returned, logged) if inspect.isawaitable(returned) else self._read_one(returned, logged)

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The function's parameters, without `*args` and `**kwargs`."""
        every = _signature(self.function).parameters
        return {name: one for name, one in every.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}

    @property
    def is_batch(self) -> bool:
        """Whether it takes and returns lists; only TRL calls a function of nothing but `**kwargs`."""
        return not self.parameters or any(name in _LISTS for name in self.parameters)

    @property
    def is_verls(self) -> bool:
        """Whether it is verl's, or written for verl."""
        return "solution_str" in self.parameters or is_verls(module_of(self.function))

    @property
    def needs_answer(self) -> bool:
        """Whether it cannot be called without the right answer."""
        return any(self._is_required(name) and _LISTS.get(name, name) in ANSWERS[:2] for name in self.parameters)

    @property
    def takes_answer(self) -> bool:
        """Whether it has a parameter for the right answer."""
        return any(_LISTS.get(name, name) in ANSWERS for name in self.parameters)

    def check_parameters(self) -> None:
        """Raise a ConfigError if it cannot be called for any row."""
        takes = f"The reward {self.name}({', '.join(self.parameters)})"
        for name in filter(self._is_required, _NEVER):
            raise ConfigError(f"{takes} needs `{name}`, which a reward of rows does not have: {_NEVER[name]}.")
        says = any(_LISTS.get(name, name) in RESPONSES for name in self.parameters)
        if not says and not (self.is_batch and self._takes_any()):
            raise ConfigError(f"{takes} has no parameter for the model's answer: call it `response`.")

    def check(self, scored: Scored) -> None:
        """Raise a ConfigError if it cannot be called for this row, or should not be."""
        _refuse_unsafe(self.name, module_of(self.function), scored.task.get("data_source"))
        self._arguments(scored)

    def arguments(self, batch: Sequence[Scored]) -> dict[str, Any]:
        """What the function is called with for several answers, or for one answer if it does not take lists."""
        each = [self._arguments(scored) for scored in batch]
        return {name: [one.get(name) for one in each] for name in each[0]} if self.is_batch else each[0]

    def call(self, batch: Sequence[Scored], logged: dict[str, Any]) -> Any:
        """The function's own result."""
        given = self.arguments(batch)
        logs = {"log_extra": partial(_log_extra, logged), "log_metric": logged.__setitem__}
        return self.function(**given, **{name: log for name, log in logs.items() if self._takes(name)})

    def read(self, returned: Any, count: int) -> list[tuple[float | None, dict[str, Any]]]:
        """The reward and the info of each answer, from the function's result. TRL's functions return None as the
        reward of an answer that they do not apply to.
        """
        if not self.is_batch:
            return [self._read_value(returned)]
        values: Any = returned.tolist() if hasattr(returned, "tolist") else returned  # an array or a tensor
        if not isinstance(values, (list, tuple)) or len(values) != count:
            what = f"a list with {'one reward' if count == 1 else f'{count} rewards'}"
            raise EnvironmentFailure(f"The reward {self.name} returned {str(returned)[:80]}, not {what}.")
        return list(map(self._read_value, values))

    def _read_value(self, value: Any) -> tuple[float | None, dict[str, Any]]:
        info: dict[str, Any] = {}
        if isinstance(value, Mapping):  # verl: {"score": 1.0, "acc": True}
            info = {str(name): one for name, one in value.items() if name != "score"}
            value = value.get("score", "a dict without `score`")
        elif isinstance(value, tuple) and value:  # verl: (True, "what was compared")
            value = value[0]
        if value is None and self.is_batch:
            return None, info
        reward, wrong = to_reward(value)
        if wrong:
            raise EnvironmentFailure(f"The reward {self.name} returned {str(value)[:80]!r}; it must return {wrong}.")
        return reward, info

    def _read_one(self, returned: Any, logged: Mapping[str, Any]) -> tuple[float | None, dict[str, Any]]:
        ((reward, info),) = self.read(returned, 1)
        return reward, {**logged, **info}

    async def _read_later(self, returned: Awaitable[Any], logged: Mapping[str, Any]) -> Any:
        return self._read_one(await returned, logged)

    def _arguments(self, scored: Scored) -> dict[str, Any]:
        """The arguments for one answer."""
        names = dict.fromkeys(self.parameters)
        if self.is_batch and self._takes_any():
            names |= dict.fromkeys(("prompts", "completions", *scored.task))
            names = {name: None for name in names if name not in ("prompt", "completion")}  # as TRL has it
        given = {name: self._value(name, scored) for name in names if name not in _LOGS}
        for name in (name for name, value in given.items() if value is _MISSING and self._is_required(name)):
            raise ConfigError(self._cannot_fill(name, scored))
        return {name: value for name, value in given.items() if value is not _MISSING}

    def _value(self, name: str, scored: Scored) -> Any:
        item, row = _LISTS.get(name, name), scored.task
        if item in _NEVER:
            return _MISSING
        if item in RESPONSES:
            is_chat = name == "completions" and not isinstance(scored.prompt, str)
            return [{"role": "assistant", "content": scored.response}] if is_chat else scored.response
        if item == "environment":
            return _MISSING if scored.environment is None else scored.environment
        if item in ("prompt", "task"):
            return scored.prompt if item == "prompt" else row
        is_answer = item in ANSWERS and scored.answer is not None
        if is_answer and scored.is_named and item in ANSWERS[:2]:
            return scored.answer
        # verl passes four arguments; a row's `score` or `method` must not become a function's option.
        if item in row and (self._is_required(name) or item in ("data_source", "extra_info") or not self.is_verls):
            return row[item]
        if is_answer or item in PROMPTS:
            return scored.answer if is_answer else scored.prompt
        return {} if item == "extra_info" else _MISSING

    def _cannot_fill(self, name: str, scored: Scored) -> str:
        columns = list(scored.task)
        if name in _KNOWN:
            item = _LISTS.get(name, name)
            return f"The reward {self.name} needs the column {item}, which the rows ({', '.join(columns)}) do not have."
        close = get_close_matches(name, [*columns, *_KNOWN], n=1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        return (
            f"The reward {self.name} has a parameter `{name}`, which is no column of the rows ({', '.join(columns)}) "
            f"and none of {', '.join(_KNOWN)}.{hint}"
        )

    def _is_required(self, name: str) -> bool:
        parameter = self.parameters.get(name)
        return parameter is not None and parameter.default is inspect.Parameter.empty

    def _takes_any(self) -> bool:
        return any(one.kind is one.VAR_KEYWORD for one in _signature(self.function).parameters.values())

    def _takes(self, name: str) -> bool:
        return name in self.parameters or (self.is_batch and self._takes_any())


def find_scorer(reward: Any) -> Scorer:
    """The scorer for a function, for `module:function`, or for the name of one that ships with turnsmith.

    Example:
        >>> find_scorer("exact")(Scored("Name a colour.", "red", "red", {}))
        (1.0, {})
        >>> find_scorer(lambda completions, **_: [len(one) for one in completions])(Scored("", "red", None, {}))
        (3.0, {})
        >>> find_scorer(lambda a, b: a == b)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The reward <lambda>(a, b) has no parameter for the model's answer: call it \
`response`.
    """
    function: Any = reward
    check_answer: Callable[[Any], object] = str
    if isinstance(reward, str):
        _refuse_unsafe(reward, reward.partition(":")[0])  # before its module is imported
        function, check_answer = (import_object(reward), str) if ":" in reward else shipped_scorer(reward)
    name = getattr(function, "__name__", type(function).__name__)
    _refuse_unsafe(name, module_of(function))
    scorer = Scorer(reward if isinstance(reward, str) else name, function, check_answer)
    scorer.check_parameters()
    return scorer


def is_scorer(function: Any) -> bool:
    """Whether this is a function of a model's answer, by the names of its parameters.

    Example:
        >>> is_scorer(lambda response, answer: 1.0), is_scorer(lambda task, model: 1.0), is_scorer(Scorer)
        (True, False, False)
    """
    if not inspect.isroutine(function):
        return False
    return any(_LISTS.get(name, name) in RESPONSES for name in inspect.signature(function).parameters)


def score(scorers: Sequence[Scorer], scored: Scored) -> StepResult | Awaitable[StepResult]:
    """The end of an episode, with the sum of the rewards that apply."""
    values = [scorer(scored) for scorer in scorers]
    return _finish(values) if any(map(inspect.isawaitable, values)) else _sum(values)


async def _finish(values: Sequence[Any]) -> StepResult:
    return _sum([await value if inspect.isawaitable(value) else value for value in values])


def _sum(values: Sequence[tuple[float | None, dict[str, Any]]]) -> StepResult:
    rewards = [reward for reward, _ in values if reward is not None]
    if not rewards:
        raise EnvironmentFailure(NO_REWARD)
    info = {name: value for _, about in values for name, value in about.items()}
    return StepResult("", sum(rewards), terminated=True, info=info)


def _refuse_unsafe(name: str, module: str, data_source: Any = None) -> None:
    unsafe = why_unsafe(module, data_source)
    if unsafe:
        rows = "" if data_source is None else f" for rows of {data_source}"
        raise ConfigError(f"The reward {name} is not called{rows}: it {unsafe}.")


def _signature(function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"The reward {name} does not say what its parameters are: wrap it in a function.") from None


def _log_extra(logged: dict[str, Any], column: str, values: Sequence[Any]) -> None:
    logged[column] = values[0]


def why_unsafe(module: str, data_source: Any = None) -> str:
    """Why a scoring function of this module is not called for rows of this source; empty if it is.

    Example:
        >>> why_unsafe("verl.utils.reward_score.gsm8k"), why_unsafe("verl.utils.reward_score", "apps")[:16]
        ('', "runs the model's")
    """
    if not is_verls(module):
        return ""
    place = SOURCES.get(data_source, "") if module == _PACKAGE else module.removeprefix(f"{_PACKAGE}.").split(".")[0]
    return _REASONS.get(place, "")


def is_verls(module: str) -> bool:
    """Whether verl ships the scoring functions of this module."""
    return f"{module}.".startswith(f"{_PACKAGE}.")


def module_of(function: Any) -> str:
    """The module that defines a function, or the function that it wraps."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(inspect.unwrap(function), "__module__", ""))
