"""open-thought/reasoning-gym: its tasks by name."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from published_subjects import Subject


def _other_assignments(entry: dict[str, Any]) -> Iterator[str]:
    """Assignments that solve the sum and differ from the stored one in two letters."""
    about = entry["metadata"]
    words = [*about["words_letters"], about["result_letters"]]
    for first, second in combinations(sorted(about["letter_to_digit"]), 2):
        digits = dict(about["letter_to_digit"])
        digits[first], digits[second] = digits[second], digits[first]
        *addends, total = (int("".join(str(digits[letter]) for letter in word)) for word in words)
        if sum(addends) == total and all(digits[word[0]] for word in words):
            yield ",".join(f"{letter}={digit}" for letter, digit in sorted(digits.items()))


def _other_assignment_earns_less() -> bool:
    import reasoning_gym

    tasks = reasoning_gym.create_dataset("cryptarithm", seed=1, size=200, max_words=2)
    drawn = (tasks[number] for number in range(200))
    scores = [tasks.score_answer(answer, entry) for entry in drawn for answer in _other_assignments(entry)]
    assert scores
    return min(scores) < 1


def _asked_length_earns_nothing() -> bool:
    import reasoning_gym

    tasks = reasoning_gym.create_dataset("shortest_path", seed=1, size=50)
    entries = [entry for entry in tasks if entry["answer"] != "infeasible"]
    asks = all("length of the shortest path" in entry["question"] for entry in entries)
    return asks and all(tasks.score_answer(str(len(one["answer"].split())), one) == 0 for one in entries)


SUBJECTS = {
    "reasoning-gym-cryptarithm": Subject(("reasoning_gym:cryptarithm",), _other_assignment_earns_less),
    "reasoning-gym-shortest-path": Subject(("reasoning_gym:shortest_path",), _asked_length_earns_nothing),
}
