"""huggingface/Math-Verify: its parser and its comparison, put together as the examples of its README do."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics
from published_subjects.shared_blind import in_main_thread

MEASURED = (
    ("What is the diagonal of a square with sides of length $1$?", "\\sqrt{2}"),
    ("What is the height of an equilateral triangle with sides of length $2$?", "\\sqrt{3}"),
    ("What is the length of the vector $(1, 2)$?", "\\sqrt{5}"),
    ("What is the area of a circle of radius $1$?", "\\pi"),
    ("Solve $e^x = 2$.", "\\ln 2"),
    ("What is $\\cos 30^\\circ$?", "\\frac{\\sqrt{3}}{2}"),
    ("What is the side of a square of area $7$?", "\\sqrt{7}"),
    ("What is $\\log_{10} 5 + \\log_{10} 2$?", "1"),
    ("What is the golden ratio?", "\\frac{1+\\sqrt{5}}{2}"),
)


def graded(response: str, task: dict[str, Any]) -> float:
    """Whether the response has the answer, with the limits of time in the main thread, where they work."""
    from math_verify import parse, verify

    return in_main_thread(lambda: float(verify(parse(task["answer"]), parse(response))))


def rows() -> list[dict[str, Any]]:
    """Questions of competitions and of geometry, with answers as formulas."""
    asked = [(one.text, one.answer) for one in mathematics()[:12]] + list(MEASURED)
    return [
        {"problem": f"{question} Put the final answer into \\boxed{{}}.", "answer": f"${answer}$"}
        for question, answer in asked
    ]


def _root_is_not_its_decimal() -> bool:
    from math_verify import parse, verify

    return not verify(parse("$\\sqrt{2}$"), parse("$1.414214$"))


_WORDS = (
    *("--data", "rows.jsonl", "--reward", "published_subjects.math_verify_fresh:graded"),
    *("--prompt", "problem", "--answer", "answer"),
)
SUBJECTS = {
    "math-verify-float-function": Subject(_WORDS, _root_is_not_its_decimal, rows),
}
