"""THUDM/slime: its scorer of mathematics, called as its rewards of type `math` are."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics, word_problems

_WORDS = ("--data", "rows.jsonl", "--reward", "published_subjects.slime:math")


def math(response: str, label: Any) -> int:
    """The reward of the type `math`."""
    from slime.rollout.rm_hub.math_utils import grade_answer_verl

    return 1 if grade_answer_verl(response, label) else 0


def _rows(questions: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [
                {
                    "role": "user",
                    "content": f"{text} Please reason step by step, and put your final answer within \\boxed{{}}.",
                }
            ],
            "label": label,
        }
        for text, label in questions
    ]


def _numbers() -> list[dict[str, Any]]:
    return _rows([(one.text, int(one.answer)) for one in word_problems()])


def _formulas() -> list[dict[str, Any]]:
    return _rows([(one.text, one.answer) for one in mathematics()])


def _a_number_as_the_label_raises() -> bool:
    try:
        return not math("It is \\boxed{42}.", 42)
    except TypeError:
        return True


def _a_builtin_is_called() -> bool:
    from slime.rollout.rm_hub.math_utils import _sympy_parse, should_allow_eval

    answer = "id(1)"
    return should_allow_eval(answer) and type(_sympy_parse(answer)) is int


SUBJECTS = {
    "slime-ground-truth-type": Subject(_WORDS, _a_number_as_the_label_raises, _numbers),
    "slime-sympy-code": Subject(_WORDS, _a_builtin_is_called, _formulas),
}
