"""The scoring functions that ship with turnsmith: what they pay for, what not, and what they say of bad data."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from turnsmith.env.adapters.answers import (
    SHIPPED,
    choice_answer,
    code_answer,
    exact_answer,
    json_answer,
    number_answer,
    regex_answer,
    shipped_scorer,
)
from turnsmith.env.adapters.final_answers import final_answer
from turnsmith.errors import ConfigError, EnvironmentFailure


@pytest.mark.parametrize(
    ("response", "final"),
    [
        ("yes", "yes"),
        ("First 3, then #### 4", "4"),
        ("#### 3\n#### 4 ", "4"),
        ("<answer>a</answer> or <ANSWER>\nb\n</ANSWER> then more", "b"),
        (r"\boxed{1} so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"It was cut off: \boxed{\frac{1}", r"It was cut off: \boxed{\frac{1}"),
        ("The final answer is: 7", "7"),
        ("The answer is 7", "7"),
        ("My answers are many", "My answers are many"),
        ("", ""),
    ],
)
def test_the_final_answer(response: str, final: str) -> None:
    assert final_answer(response) == final


BETWEEN = {"properties": {"a": {"type": "number", "minimum": 5, "maximum": 6}}}
PAID = [
    (exact_answer, "New\n York ", "New York"),
    (exact_answer, "3", 3),
    (number_answer, "#### 1,234.50", "1234.5"),
    (number_answer, "It costs $5.", "5"),
    (number_answer, "\N{MINUS SIGN}3", -3),
    (number_answer, "3/4", "0.75"),
    (number_answer, "1e-3", 0.001),
    (number_answer, ".5", 0.5),
    (number_answer, "5 KM", "5 km"),
    (number_answer, "5", "5 km"),
    (number_answer, "50%", "50"),
    (number_answer, "0.33333333", "1/3"),
    (number_answer, "H2O boils at 100", 100),
    (number_answer, "1/0 or rather 2", 2),
    (choice_answer, "(b)", "B"),
    (choice_answer, "The answer is **C**.", "c"),
    (choice_answer, "#### D)", "(D)"),
    (regex_answer, "Answer: 2026", r"\d+"),
    (regex_answer, "a\nb", "a.b"),
    (json_answer, 'Here:\n```json\n{"a": 1}\n```', '{"required": ["a"]}'),
    (json_answer, "[]", True),
    (exact_answer, "I write it in <answer> tags. <answer>5</answer>", 5),
    (number_answer, "9" * 400, "9" * 400),
    (number_answer, "on 11/16/2026", "11/16"),
    (json_answer, '{"a": 5.5}', BETWEEN),
    (json_answer, "[[[]]]", {"$id": "x", "items": {"$ref": "#"}}),
    (json_answer, "7", {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}),
]
NOT_PAID = [
    (exact_answer, "new york", "New York"),
    (exact_answer, "Boston, New York, Paris", "New York"),
    (exact_answer, "", "x"),
    (number_answer, "", 5),
    (number_answer, "5 or 6 or 7", 5),
    (number_answer, "5 km", "5 m"),
    (number_answer, "x5", 5),
    (number_answer, "-5", 5),
    (number_answer, "5.001", 5),
    (number_answer, "1e999999999", 5),
    (number_answer, "1/" + "0" * 10, 5),
    (number_answer, "nan", 0),
    (choice_answer, "A, B, C, D", "A"),
    (choice_answer, "A dog barks", "A"),
    (choice_answer, "", "A"),
    (regex_answer, "in the year 2026", r"\d+"),
    (json_answer, '{"a": 1', '{"required": ["a"]}'),
    (json_answer, "[" * 100_000, "{}"),
    (json_answer, '{"b": 1}', {"required": ["a"]}),
    (json_answer, '{"a": NaN}', BETWEEN),
    (json_answer, '{"a": Infinity}', {"properties": {"a": {"minimum": 5}}}),
    (json_answer, '{"a": 1e400}', {"properties": {"a": {"minimum": 5}}}),
    (json_answer, '{"a": ' + "9" * 400 + "}", {"properties": {"a": {"multipleOf": 0.5}}}),
    (json_answer, '{"a": ' + "9" * 4000 + "}", BETWEEN),
    (json_answer, "[" * 900 + "]" * 900, {"$id": "x", "type": "array", "items": {"$ref": "#"}}),
    (number_answer, "Infinity", 5),
    (number_answer, "9" * 400, 5),
    (exact_answer, "a " * 60_000, "a " * 60_000),
]


async def rewarded(scorer: Any, response: str, answer: Any) -> float:
    reward = scorer(response, answer)
    return await reward if inspect.isawaitable(reward) else reward


@pytest.mark.parametrize(("scorer", "response", "answer"), PAID)
async def test_it_pays(scorer: Any, response: str, answer: Any) -> None:
    assert await rewarded(scorer, response, answer) == 1.0


@pytest.mark.parametrize(("scorer", "response", "answer"), NOT_PAID)
async def test_it_does_not_pay(scorer: Any, response: str, answer: Any) -> None:
    assert await rewarded(scorer, response, answer) == 0.0


@pytest.mark.parametrize(
    ("scorer", "answer", "sentence"),
    [
        (number_answer, "none", "The answer 'none' has no number to compare with."),
        (choice_answer, "all of them", "The answer 'all of them' is not one letter."),
        (regex_answer, "(", "is not a regular expression: missing"),
        (json_answer, {"type": "thing"}, "The answer is not a JSON schema: "),
        (json_answer, "not json", "The answer 'not json' is not a JSON schema: Expecting value"),
        (json_answer, {"pattern": "("}, "The answer is not a JSON schema: "),
    ],
)
async def test_data_that_cannot_be_compared_with_is_a_failure_and_not_a_reward_of_0(
    scorer: Any, answer: Any, sentence: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=sentence):
        await rewarded(scorer, "{}", answer)


SUM = "```python\ndef add(a, b):\n    return a + b\n```"
TESTS = "assert add(2, 2) == 4"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (SUM, 1.0),
        ("def add(a, b): return a + b", 1.0),
        ("def add(a, b): return a - b", 0.0),
        ("import sys\nsys.exit(0)", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("print('ok')\nraise SystemExit", 0.0),
        ("not Python", 0.0),
    ],
)
async def test_code_is_paid_for_if_the_tests_run_to_their_end(response: str, reward: float) -> None:
    assert await code_answer(response, TESTS) == reward


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="There is no reward called 'nmber': use exact, number"):
        shipped_scorer("nmber")
    assert all(shipped_scorer(name) for name in SHIPPED)
