"""rllm-org/rllm: its comparison of mathematical answers, as its reward for mathematics uses it."""

from __future__ import annotations

import multiprocessing
import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics
from published_subjects.shared_blind import in_main_thread, problems


def _utilities() -> Any:
    """The module, without its package's rewards, which need tools to run programs with."""
    for name in ("rllm", "rllm.rewards", "rllm.rewards.math_utils"):
        package = ModuleType(name)
        package.__path__ = [f"{place}/{name.replace('.', '/')}" for place in sys.path]
        sys.modules.setdefault(name, package)
    import rllm.rewards.math_utils.utils as utilities

    return utilities


def graded(response: str, task: dict[str, Any]) -> float:
    """What follows the thinking is looked through for its last box; either comparison is enough."""
    utilities = _utilities()
    boxed = utilities.extract_answer(response.split("</think>")[-1])
    if boxed is None:
        return 0.0
    truth = task["ground_truth"]

    def same() -> bool:
        return utilities.grade_answer_mathd(boxed, truth) or utilities.grade_answer_sympy(boxed, truth)

    return float(in_main_thread(same))


def rows() -> list[dict[str, Any]]:
    """As DeepScaleR: problems with answers as numbers and formulas."""
    asked = [(one.text, one.answer) for one in mathematics()] + [(one.question, one.answer) for one in problems(14)]
    ending = " Let's think step by step and put the final answer within \\boxed{}."
    return [{"problem": question + ending, "ground_truth": answer} for question, answer in asked]


def _nearly_two_thousand_is_one_less() -> bool:
    return _utilities().grade_answer_sympy("1,999.99999999", "1999")


def _simplifies_without_end() -> bool:
    utilities = _utilities()
    utilities.grade_answer_sympy("x+1-x", "1")  # what is imported late

    def compare() -> None:
        utilities.grade_answer_sympy("9999999!", "6\\sqrt{2}")

    process = multiprocessing.get_context("fork").Process(target=compare)
    process.start()
    process.join(20)
    hangs = process.is_alive()
    process.kill()
    return hangs


_WORDS = (
    *("--data", "rows.jsonl", "--reward", "published_subjects.rllm_fresh:graded"),
    *("--prompt", "problem", "--answer", "ground_truth"),
)
SUBJECTS = {
    "rllm-near-integer": Subject(_WORDS, _nearly_two_thousand_is_one_less, rows),
    "rllm-sympy-hang": Subject(_WORDS, _simplifies_without_end, rows),
}
