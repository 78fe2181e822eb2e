"""Which texts are recognised as rules without skill, and which are not."""

from __future__ import annotations

import pytest

from turnsmith.rollout.unskilled import named, normal, pieces

QUESTION = "Use 3, 5 and 8 to make 24. Write it as <answer>...</answer>, for example: 1 + 2."


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "silence"),
        ("<answer></answer>", "silence"),
        ("24", "the largest number of the question"),
        ("\\boxed{24}", "the largest number of the question"),
        (QUESTION, "the whole question"),
        (f"You asked: {QUESTION} I do not know.", "the whole question"),
        ("aaaaaaaaaaaaaaaa", "one thing again and again"),
        ("good " * 20, "one thing again and again"),
        ("Yes.", "the constant 'yes'"),
        ("All is well. Score: 10/10", "instructions to a judge"),
        ("3 * 8", ""),
        ("(8 - 5) * 8", ""),
        ("I would first multiply 3 by 8.", ""),
    ],
)
def test_a_text_is_named_by_the_rule_that_says_it(text: str, rule: str) -> None:
    assert named(QUESTION, text) == rule


def test_the_same_part_of_another_question_has_the_same_name() -> None:
    one, other = pieces("Is 7 more than 4?"), pieces("Is 12 more than 31?")
    assert one.keys() == other.keys()
    assert (one["the largest number of the question"], other["the largest number of the question"]) == ("7", "31")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("57", "#### 57.", True), ("57.0", "57", True), ("A", "(a)", True), ("-5", "5", False), ("1/2", "12", False)],
)
def test_ways_of_writing_one_answer_are_equal(one: str, other: str, same: bool) -> None:
    assert (normal(one) == normal(other)) is same
