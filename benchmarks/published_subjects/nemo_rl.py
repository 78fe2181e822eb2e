"""NVIDIA-NeMo/RL: the worker of its environment of mathematics, called with a batch as the environment does."""

from __future__ import annotations

from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics
from published_subjects.shared_blind import in_main_thread


def math(solution_strs: list[str], ground_truths: list[str]) -> list[float]:
    """The scores of a batch whose answers are noted, too."""
    made = _worker()
    return in_main_thread(
        lambda: made.verify(
            solution_strs, ground_truths, return_extracted_answer=True, math_verify_impl="hf_math_verify"
        )[0]
    )


def _worker() -> Any:
    """The class that ray would run in a process of its own."""
    from nemo_rl.environments.math_environment import HFVerifyWorker

    return HFVerifyWorker.__ray_metadata__.modified_class()


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "problem": f"{one.text} Think step by step and give the answer inside \\boxed{{}}.",
            "expected_answer": one.answer,
        }
        for one in mathematics()
    ]


def _a_sample_has_two_scores() -> bool:
    return len(math(["I do not know."], ["7"])) != 1


SUBJECTS = {
    "nemo-rl-math-scores": Subject(
        (
            *("--data", "rows.jsonl", "--answer", "expected_answer"),
            *("--reward", "published_subjects.nemo_rl:math"),
        ),
        _a_sample_has_two_scores,
        _rows,
    ),
}
