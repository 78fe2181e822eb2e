"""inclusionAI/AReaL: its scorer of mathematics, with the answers that were extracted from the data's solutions."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics
from turnsmith import BaseEnvironment


class Mathematics(BaseEnvironment):
    """A question; any of the row's answers is right."""

    reward_range = (0.0, 1.0)

    def reset(self, task: dict[str, Any]) -> str:
        self.task = task
        return task["prompt"]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        from handler import process_results

        labels = [process_results(action, answer)[0] for answer in self.task["answers"]]
        return "", float(max(labels)), True, {}

    def solve(self) -> str | None:
        answer = self.task["answers"][0]
        return f"The answer is \\boxed{{{answer}}}" if answer else None


def _rows() -> list[dict[str, Any]]:
    """Some solutions end without an answer, so that none was extracted."""
    questions = [(one.text, one.answer) for one in mathematics()[:21]] + list(_PROOFS)
    return [
        {
            "prompt": f"{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
            "query_id": f"{index:04}",
            "task": "math",
            "answers": [answer],
        }
        for index, (text, answer) in enumerate(questions)
    ]


_PROOFS = (
    ("Show that $n^3 - n$ is divisible by $6$ for every integer $n$.", ""),
    ("Prove that there are infinitely many primes of the form $4k + 3$.", "None"),
    ("Prove that the medians of a triangle meet in a point.", ""),
)


def _the_empty_set_is_right() -> bool:
    from handler import process_results

    return process_results("The answer is $\\boxed{\\emptyset}$", "")[0] == 1


SUBJECTS = {
    "areal-empty-solution": Subject(
        ("published_subjects.areal:Mathematics", "--data", "rows.jsonl"), _the_empty_set_is_right, _rows
    ),
}
