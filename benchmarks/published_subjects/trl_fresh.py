"""huggingface/trl: the reward for mathematics that it comes with, named as its documentation names it."""

from __future__ import annotations

import threading
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import problems


def rows() -> list[dict[str, Any]]:
    """As the data set DeepMath of the documentation: conversations and solutions in formula signs."""
    return [
        {"prompt": [{"role": "user", "content": one.question}], "solution": f"${one.answer}$"} for one in problems()
    ]


def _another_thread_cannot_score() -> bool:
    from trl.rewards import accuracy_reward

    rewards: list[Any] = []

    def call() -> None:
        try:
            rewards.extend(accuracy_reward([[{"content": "It is $\\boxed{4}$."}]], ["$4$"]))
        except ValueError:
            rewards.append(None)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return rewards != [1.0]


SUBJECTS = {
    "trl-accuracy-thread": Subject(
        ("--data", "rows.jsonl", "--reward", "trl.rewards:accuracy_reward", "--answer", "solution"),
        _another_thread_cannot_score,
        rows,
    ),
}
