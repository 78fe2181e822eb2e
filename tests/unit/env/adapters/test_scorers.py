"""Scoring functions of others get what the names of their parameters ask for, and give what their project computes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.env.adapters.scorers import SOURCES
from turnsmith.errors import ConfigError, EnvironmentFailure

ROW = {"prompt": "2 + 2?", "answer": "4"}
VERL = "verl.utils.reward_score"
CALL = '<think>a</think>\n<tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'


def play(row: dict[str, Any], response: str, reward: Any, *, answer: str = "") -> Any:
    environment = QuestionAnswer(reward=reward, answer=answer)
    environment.check_tasks([row])
    environment.reset(row)
    return environment.step(response)


@pytest.mark.parametrize(
    "reward",
    [
        lambda response, answer: response == f"= {answer}",
        lambda ground_truth, response: response == f"= {ground_truth}",
        lambda answer, response: response == f"= {answer}",
        lambda gold, pred: pred == f"= {gold}",
        lambda prompt, response: (prompt, response) == ("2 + 2?", "= 4"),
        lambda response: response == "= 4",
        lambda solution_str, ground_truth: solution_str == f"= {ground_truth}",
        lambda response, *, task: response == f"= {task['answer']}",
        lambda question, completion, label="4": (question, completion, label) == ("2 + 2?", "= 4", "4"),
        partial(lambda scale, answer, output: scale * (output == f"= {answer}"), 1),
    ],
)
def test_parameters_are_bound_by_their_names(reward: Callable[..., Any]) -> None:
    assert [play(ROW, said, reward).reward for said in ("= 4", "= 5")] == [1.0, 0.0]


def test_a_parameter_that_is_not_known_is_a_column_or_refused() -> None:
    row = {**ROW, "unit": "apples", "score": 9, "gold": "four", "ground_truth": "4.0"}
    assert play(row, "4 apples", lambda response, answer, unit: response == f"{answer} {unit}").reward == 1
    assert play(row, "=four", lambda gold, pred: pred == f"={gold}").reward == 1, "the row has such a column"
    assert play(row, "=4.0", lambda ground_truth, pred: pred == f"={ground_truth}").reward == 1
    assert play(row, "four", lambda pred, answer: pred == answer, answer="gold").reward == 1, "the column was named"
    assert play(row, "", lambda solution_str, ground_truth, score=1.0: score).reward == 1, "verl passes four things"
    with pytest.raises(ConfigError, match=r"parameter `unot`, which is no column .*\. Did you mean `unit`\?"):
        play(row, "", lambda response, unot: 1)
    for unknown in (lambda x, y: 1.0, lambda answer, gold: 1.0):
        with pytest.raises(ConfigError, match="has no parameter for the model's answer: call it `response`"):
            QuestionAnswer(reward=unknown)
    with pytest.raises(ConfigError, match="The reward zip does not say what its parameters are"):
        QuestionAnswer(reward=zip)


def test_a_column_that_is_not_there_is_a_mistake_before_the_first_episode() -> None:
    def gives_zero(response: str, answer: str) -> float:
        return float(response == answer)

    with pytest.raises(ConfigError, match=r"Row 1 .*: The row has no column 'anwser' .*; it has prompt, answer"):
        QuestionAnswer(answer="anwser", reward=gives_zero).check_tasks([{**ROW, "anwser": "4"}, ROW])
    with pytest.raises(EnvironmentFailure, match="Did you mean 'answer'"):
        QuestionAnswer(answer="anwser", reward=gives_zero).reset(ROW)
    nested = {"prompt": "?", "reward_model": {"ground_truth": "4"}}
    with pytest.raises(ConfigError, match=r"Did you mean 'reward_model\.ground_truth'"):
        QuestionAnswer(answer="reward_model.ground_truht").check_tasks([nested])
    with pytest.raises(ConfigError, match="has no column 'answer' or"):
        QuestionAnswer(reward=f"{VERL}:default_compute_score").check_tasks([{"prompt": "?", "data_source": "math"}])


def test_a_reward_that_looks_at_its_batch_is_refused() -> None:
    def length(completions: list[str], **kwargs: Any) -> list[float]:
        return [float(len(one)) for one in completions]

    def normalised(completions: list[str], **kwargs: Any) -> list[float]:
        mean = sum(map(len, completions)) / len(completions)
        return [len(one) - mean for one in completions]

    def best(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
        right = [right in said for said, right in zip(completions, answer, strict=True)]
        return [float(one and index == right.index(True)) for index, one in enumerate(right)]

    numbers = iter(range(1000))
    assert play(ROW, "four", length).reward == 4
    assert play(ROW, "four", lambda completions: [next(numbers) for _ in completions]).reward, "there is no telling"
    for reward in (normalised, best):
        with pytest.raises(ConfigError, match=f"{reward.__name__} gives an answer another reward when"):
            QuestionAnswer(reward=reward).check_tasks([ROW])
    with pytest.raises(ConfigError, match="raised KeyError: 'trainer_state'"):
        QuestionAnswer(reward=lambda **kwargs: [kwargs["trainer_state"]]).check_tasks([ROW])


def test_what_trl_passes_besides_the_columns() -> None:
    def logs(completions: Any, log_extra: Any, log_metric: Any, trainer_state: Any = None) -> list[float]:
        log_extra("said", list(completions))
        log_metric("mean", 0.5)
        return [1.0] * len(completions)

    result = play(ROW, "4", logs)
    assert (result.reward, result.info) == (1.0, {"said": "4", "mean": 0.5})
    assert play(
        ROW,
        "4",
        lambda **kwargs: (
            [float(set(kwargs) == {"prompts", "completions", "answer", "log_extra", "log_metric"})]
            * len(kwargs["prompts"])
        ),
    ).reward
    assert play(ROW, "4", [lambda completions: [None] * len(completions), "exact"]).reward == 1, "it does not apply"
    with pytest.raises(ConfigError, match=r"needs `completion_ids`, .* write a `reward_fn\(trajectory\)` instead"):
        QuestionAnswer(reward=lambda completion_ids, **kwargs: [0.0])


def test_arrays_are_lists() -> None:
    import numpy as np
    import torch

    assert play(ROW, "4", lambda completions: np.ones(len(completions))).reward == 1
    assert play(ROW, "4", lambda completions: torch.ones(len(completions))).reward == 1
    with pytest.raises(ConfigError, match=r"returned \[1\. 1\.\], not a list with one reward"):
        play(ROW, "4", lambda completions: np.ones(2))


def number(returned: Any) -> float:
    """What verl's own reward managers make of it."""
    if isinstance(returned, dict):
        return float(returned["score"])
    return float(returned[0] if isinstance(returned, (tuple, list)) else returned)


GSM8K = ("She has 72.\n#### 72", "She has 71.\n#### 71", "72")
BOXED = (r"So \boxed{\frac{1}{2}}", r"So \boxed{\frac{1}{3}}", "no")
ANSWERED = ("<answer>Paris, France</answer>", "<answer>the paris</answer>", "Paris")
CALLS = (CALL, CALL.replace("1", "2"), "no")
EXTRA = {"experiment_name": "qwen"}
COMPUTED: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[[Any, str], Any]]] = [
    ("gsm8k:compute_score", GSM8K, {"answer": "72"}, lambda f, said: f(said, "72")),
    ("math_reward:compute_score", BOXED, {"answer": r"\frac{1}{2}"}, lambda f, said: f(said, r"\frac{1}{2}")),
    ("math_batch:compute_score_batched", BOXED, {"answer": "1/2", "data_source": "mine"},
     lambda f, said: f([""], [said], ["1/2"], [{}])),
    ("math_dapo:compute_score", ("Answer: 34", "Answer: 7"), {"answer": "34"}, lambda f, said: f(said, "34")),
    ("math_dapo:verify", ("Answer: 34", "Answer: 7"), {"answer": "34"}, lambda f, said: f(said, "34")),
    ("math_dapo:is_correct_minerva", ("Answer: 34", "7"), {"answer": "34"}, lambda f, said: f(said, "34")),
    ("math_dapo:is_correct_strict_box", (r"\boxed{34}", "7"), {"answer": "34"}, lambda f, said: f(said, "34")),
    ("search_r1_like_qa_em:compute_score", ANSWERED, {"answer": {"target": ["Paris"]}},
     lambda f, said: f(said, {"target": ["Paris"]})),
    ("search_r1_like_qa_em:compute_score_subem", ANSWERED, {"answer": {"target": ["Paris"]}},
     lambda f, said: f(said, {"target": ["Paris"]})),
    ("search_r1_like_qa_em:em_check", ("the Paris", "Rome"), {"golden_answers": ["Paris"], "answer": "x"},
     lambda f, said: f(said, ["Paris"])),
    ("search_r1_like_qa_em:subem_check", ("Paris, France", "Rome"), {"answer": ["Paris"]},
     lambda f, said: f(said, ["Paris"])),
    ("rlla:compute_score", CALLS, {"answer": CALLS[0], "data_source": "rlla", "extra_info": EXTRA},
     lambda f, said: f("rlla", said, CALLS[0], EXTRA)),
    *((":default_compute_score", texts, {"answer": "72", "data_source": source},
       lambda f, said, source=source: f(source, said, "72"))
      for source, texts in (("openai/gsm8k", GSM8K), ("lighteval/MATH", (r"\boxed{72}", "72")),
                            ("aime24", ("Answer: 72", "Answer: 7")))),
    (":default_compute_score", ANSWERED, {"answer": {"target": ["Paris"]}, "data_source": "searchR1_nq"},
     lambda f, said: f("searchR1_nq", said, {"target": ["Paris"]})),
    (":_default_compute_score", GSM8K, {"answer": "72", "data_source": "openai/gsm8k"},
     lambda f, said: f("openai/gsm8k", said, "72")),
]  # fmt: skip
REFUSED = [
    ("math_verify:compute_score", "scores 0 whatever its processes have not compared in time: use the reward `math`"),
    ("prime_math:compute_score", "evaluates what the model wrote as Python"),
    ("prime_math.grader:math_equal", "evaluates what the model wrote as Python"),
    ("prime_code:compute_score", "outside of a sandbox: use the reward `tests`"),
    ("sandbox_fusion:compute_score", "on a server of yours"),
    ("geo3k:compute_score", "with sympy"),
    ("math_reward:is_equiv", "no parameter for the model's answer"),
    ("math_dapo:normalize_final_answer", "no parameter for the model's answer"),
    ("rlla:customize_correctness_reward_tool", "parameter `step`, which is no column"),
    ("gsm8k:extract_solution", "returned 'None'; it must return a finite number"),
    (":default_compute_score", "Reward function is not implemented for data_source='mine'"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("name", "responses", "row", "call"), COMPUTED, ids=lambda value: None if callable(value) else str(value)[:40]
)
def test_verls_scorers_by_name_give_what_verl_computes(
    name: str, responses: tuple[str, ...], row: dict[str, Any], call: Callable[[Any, str], Any]
) -> None:
    module, _, function = name.partition(":")
    original = getattr(import_module(f"{VERL}.{module}".rstrip(".")), function)
    rewards = [
        play({"prompt": "?", **row}, said, f"{VERL}.{module}".rstrip(".") + f":{function}").reward for said in responses
    ]
    assert rewards == [number(call(original, said)) for said in responses]
    assert len(set(rewards)) > 1


@pytest.mark.parametrize(("name", "sentence"), REFUSED)
def test_verls_other_functions_are_refused_before_the_first_episode(name: str, sentence: str) -> None:
    module, _, function = name.partition(":")
    with pytest.raises(ConfigError, match=sentence):
        play({**ROW, "data_source": "mine"}, "4", f"{VERL}.{module}".rstrip(".") + f":{function}")


def test_the_sources_that_verl_scores_with_unsafe_code_are_refused() -> None:
    """A new version of verl may route others to these modules."""
    from verl.utils import reward_score

    branches = inspect.getsource(reward_score.default_compute_score).split("if data_source")[1:]
    assert len(branches) == 7
    for source, module in SOURCES.items():
        (branch,) = [branch for branch in branches if f'"{source}"' in branch]
        assert f"{module}.compute_score(" in branch
        with pytest.raises(ConfigError, match=f"is not called for rows of {source}: it "):
            QuestionAnswer().check_tasks([{**ROW, "data_source": source}])
    unsafe = [branch for branch in branches if "prime_" in branch or "geo3k" in branch]
    assert sum(branch.partition(":")[0].count('"') // 2 for branch in unsafe) == len(SOURCES)


def functions_of_verl() -> list[str]:
    """Each public function of verl's scorers, by the name that a user writes; some modules take long to import."""
    package, found = Path(str(import_module(VERL).__file__)).parent, list[str]()
    for file in package.rglob("*.py"):
        module = ".".join(file.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        body = ast.parse(file.read_text()).body
        found += [f"{module}:{one.name}" for one in body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"]
    return found


def test_every_function_of_verls_scorers_is_computed_or_refused_before_the_first_episode() -> None:
    """So that one of a new version is looked at."""
    computed, row = {one[0] for one in COMPUTED}, {**ROW, "data_source": "mine", "extra_info": EXTRA}
    functions = functions_of_verl()
    assert {name for name in computed if ":_" not in name} <= set(functions)
    assert len(functions) > 50
    for name in set(functions) - computed:
        module, _, function = name.partition(":")
        with pytest.raises(ConfigError):
            QuestionAnswer(reward=f"{VERL}.{module}".rstrip(".") + f":{function}").check_tasks([row])
