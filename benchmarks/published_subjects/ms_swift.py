"""modelscope/ms-swift: its rewards of mathematics, one completion at a time."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics, word_problems
from published_subjects.shared_blind import in_main_thread

_ASKED = "Please reason step by step, and put your final answer within \\boxed{}."


def cosine(response: str, solution: str) -> float:
    """The cosine of the length, with the values that the paper has for wrong answers."""
    made = _rewards("swift.plugin.orm").CosineReward(
        tokenizer=SimpleNamespace(encode=lambda text: re.findall(r"\w+|[^\w\s]", text)),
        cosine_min_len_value_wrong=-0.5,
        cosine_max_len_value_wrong=0.0,
    )
    return _in_main_thread(lambda: made([response], [solution])[0])


def accuracy(response: str, solution: str) -> float:
    """The reward `accuracy`."""
    made = _rewards("swift.plugin.orm").MathAccuracy()
    return _in_main_thread(lambda: made([response], [solution])[0])


def math(response: str, ground_truth: str) -> float:
    """The reward `math`."""
    said = SimpleNamespace(messages=[{"role": "assistant", "content": response}])
    return _rewards("swift.rewards.orm").MathORM()([said], [ground_truth])[0]


def _rewards(name: str) -> Any:
    """The module of the rewards, with the class of the engine that it names only as a type."""
    for engine in ("swift.llm", "swift.infer_engine"):
        if engine not in sys.modules:
            module = ModuleType(engine)
            vars(module)["InferRequest"] = SimpleNamespace
            sys.modules[engine] = module
    return importlib.import_module(name)


def _in_main_thread(function: Callable[[], float]) -> float:
    """As the trainer calls it: math-verify sets alarms, which only a main thread can."""
    importlib.import_module("math_verify")
    return in_main_thread(function)


def _rows(column: str, questions: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{text} {_ASKED}"}], column: answer} for text, answer in questions
    ]


def _solutions() -> list[dict[str, Any]]:
    return _rows("solution", [(one.text, one.solution) for one in mathematics()])


def _plain_answers() -> list[dict[str, Any]]:
    return _rows("solution", [(one.text, one.answer) for one in word_problems()])


def _answers() -> list[dict[str, Any]]:
    return _rows("ground_truth", [(one.text, one.answer) for one in mathematics()])


def _a_longer_wrong_answer_earns_less() -> bool:
    short, long = (cosine("It is so. " * count + "$\\boxed{8}$", "$\\boxed{7}$") for count in (1, 50))
    return long < short


def _what_does_not_parse_is_right() -> bool:
    return math("It is \\boxed{(3,7)}.", "(-1,5)") == 1


def _a_plain_solution_pays_anything() -> bool:
    return accuracy("I do not know.", "72") == 1


SUBJECTS = {
    "ms-swift-cosine-wrong": Subject(
        ("--data", "rows.jsonl", "--reward", "published_subjects.ms_swift:cosine"),
        _a_longer_wrong_answer_earns_less,
        _solutions,
    ),
    "ms-swift-math-none": Subject(
        ("--data", "rows.jsonl", "--reward", "published_subjects.ms_swift:math"),
        _what_does_not_parse_is_right,
        _answers,
    ),
    "ms-swift-unparsed-gold": Subject(
        ("--data", "rows.jsonl", "--reward", "published_subjects.ms_swift:accuracy"),
        _a_plain_solution_pays_anything,
        _plain_answers,
    ),
}
