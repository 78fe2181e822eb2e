"""UKGovernmentBEIS/inspect_ai: its scorers, called with the state of a finished sample and its target."""

from __future__ import annotations

import asyncio
from typing import Any

from published_subjects import Subject
from published_subjects._questions import mathematics, word_problems
from published_subjects.open_instruct_blind import ACCEPTED

MEASURED = (
    ("What is pi, to two decimals?", "3.14"), ("How high is a door of 6.5 feet in metres, to two decimals?", "1.98"),
    ("What is a third of 8.4?", "2.8"), ("How many litres are 3.5 bottles of 0.75 litres?", "2.625"),
    ("What is the mean of 2, 3 and 4.3?", "3.1"), ("What is half of 0.5?", "0.25"), ("What is 12.5 times 4?", "50"),
    ("What is 7.2 minus 9.7?", "-2.5"), ("At how many degrees Celsius does mercury freeze?", "-38.83"),
    ("What is the square of 1.5?", "2.25"), ("How many kilometres are 2.5 miles of 1.6 kilometres?", "4"),
    ("What is the gravity at the surface of the earth in m/s^2, to two decimals?", "9.81"),
    ("What is 3 minus 8?", "-5"), ("What is e, to three decimals?", "2.718"), ("What is 10 divided by 4?", "2.5"),
    ("What is the price of 3 cards at 1.20 each?", "3.60"),
)  # fmt: skip
ORDERED = (
    ("Put into order of size, smallest first: cow, mouse, dog.", "mouse dog cow"),
    ("Which two words does 'Carpe diem' mean in English?", "seize the day"),
    ("Put into order of time: Rome, Egypt, Byzantium.", "Egypt Rome Byzantium"),
    ("Spell 321 in words.", "three hundred twenty one"),
    ("Spell 4004 in words.", "four thousand four"),
    ("Translate into English: le chat noir.", "the black cat"),
    ("Put into alphabetical order: pear, apple, fig.", "apple fig pear"),
    ("Who wrote Emma, first name and surname?", "Jane Austen"),
    ("Name the colours of the French flag from left to right.", "blue white red"),
    ("What is the full name of the state with the capital Charleston?", "West Virginia"),
    ("Name the planets between the sun and the earth, from the sun.", "Mercury Venus"),
    ("Spell 12 in words.", "twelve"),
    ("Repeat: to be or not to be.", "to be or not to be"),
    ("Put into order, largest first: metre, kilometre, centimetre.", "kilometre metre centimetre"),
    ("What is the capital of New Zealand?", "Wellington"),
    ("Translate into English: buenas noches.", "good night"),
)
UNITS = "\n\nThe last line has the length in the form 'ANSWER: 12 m' or 'ANSWER: 12 cm'."
LENGTHS = (
    ("How long is a football pitch of the usual size?", "105"), ("How long is a marathon in kilometres?", "42"),
    ("How high is the Eiffel tower?", "330"), ("How wide is a sheet of A4 paper?", "21"),
    ("How long is an Olympic pool?", "50"), ("How long is a sheet of A4 paper, in whole units?", "30"),
    ("How deep is the deepest part of a diving pool?", "5"), ("How long is a new pencil?", "18"),
    ("How high is a basketball ring, in whole units?", "305"), ("How wide is a CD?", "12"),
    ("How long is a cricket pitch, in whole units?", "20"), ("How long was the first flight of the Wrights?", "37"),
    ("How high is Nelson's column?", "52"), ("How long is a blue whale, at most?", "30"),
    ("How long is a tennis court, in whole units?", "24"), ("How long is a bowling lane, in whole units?", "18"),
)  # fmt: skip


async def _scored(scorer: Any, response: str, target: str | list[str]) -> float:
    """The number that the log of an evaluation has for the score."""
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Target, value_to_float
    from inspect_ai.solver import TaskState

    output = ModelOutput.from_content("model", response)
    state = TaskState(model="model", sample_id=1, epoch=1, input="", messages=[], output=output)
    score = await scorer(state, Target(target))
    return float(value_to_float()(score.value))


async def mathematical(response: str, task: dict[str, Any]) -> float:
    from inspect_ai.scorer import math

    return await _scored(math(), response, task["target"])


async def overlapping(response: str, task: dict[str, Any]) -> float:
    from inspect_ai.scorer import f1

    return await _scored(f1(), response, task["target"])


async def exactly(response: str, task: dict[str, Any]) -> float:
    from inspect_ai.scorer import exact

    return await _scored(exact(), response, task["target"])


async def by_pattern(response: str, task: dict[str, Any]) -> float:
    """A length with one of two units."""
    from inspect_ai.scorer import pattern

    return await _scored(pattern(r"ANSWER:\s*(?:(\d+) m\b)?(?:(\d+) cm\b)?", match_all=True), response, task["target"])


async def by_number(response: str, task: dict[str, Any]) -> float:
    from inspect_ai.scorer import match

    return await _scored(match(numeric=True), response, task["target"])


def rows_of_mathematics() -> list[dict[str, Any]]:
    asked = "Solve the problem and put the answer into \\boxed{}: "
    return [{"input": asked + one.text, "target": one.answer} for one in mathematics()]


def rows_of_facts() -> list[dict[str, Any]]:
    """Short answers, words and numbers, as DROP and SQuAD have them."""
    facts = [{"input": question, "target": accepted} for question, accepted in ACCEPTED[:8]]
    return facts + [{"input": question, "target": [answer]} for question, answer in MEASURED]


def rows_of_order() -> list[dict[str, Any]]:
    return [{"input": question, "target": answer} for question, answer in ORDERED]


def rows_of_lengths() -> list[dict[str, Any]]:
    return [{"input": question + UNITS, "target": answer} for question, answer in LENGTHS]


def rows_of_numbers() -> list[dict[str, Any]]:
    words = [{"input": one.text, "target": one.answer} for one in word_problems(12)]
    return words + [{"input": question, "target": answer} for question, answer in MEASURED]


def _answer_is_run() -> bool:
    import os

    name = "ran_by_the_grader"
    os.environ.pop(name, None)
    code = f"__import__('os').environ.__setitem__('{name}', '1')"
    asyncio.run(mathematical(f"\\boxed{{{code}}}", {"target": "7"}))
    return name in os.environ


def _point_is_lost() -> bool:
    return asyncio.run(overlapping("It is 3.14.", {"target": ["3.14"]})) == 0


def _words_in_any_order_are_exact() -> bool:
    return asyncio.run(exactly("cow dog mouse mouse", {"target": "mouse dog cow"})) == 1


def _nothing_matches_all() -> bool:
    return asyncio.run(by_pattern("ANSWER: I do not know.", {"target": "105"})) == 1


def _end_of_a_number_is_enough() -> bool:
    return asyncio.run(by_number("12.5", {"target": "2.5"})) == 1


_HERE = "published_subjects.inspect_ai_fresh"


def _words(reward: str) -> tuple[str, ...]:
    return ("--data", "rows.jsonl", "--reward", f"{_HERE}:{reward}", "--prompt", "input", "--answer", "target")


SUBJECTS = {
    "inspect-ai-math-code": Subject(_words("mathematical"), _answer_is_run, rows_of_mathematics),
    "inspect-ai-decimals": Subject(_words("overlapping"), _point_is_lost, rows_of_facts),
    "inspect-ai-exact-order": Subject(_words("exactly"), _words_in_any_order_are_exact, rows_of_order),
    "inspect-ai-pattern-none": Subject(_words("by_pattern"), _nothing_matches_all, rows_of_lengths),
    "inspect-ai-match-numeric": Subject(_words("by_number"), _end_of_a_number_is_enough, rows_of_numbers),
}
