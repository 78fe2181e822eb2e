"""Where a regular expression is given to the real re2, it says what `re` says."""

from __future__ import annotations

import random
import re

import pytest

from tests.e2e.packages import install
from turnsmith.env.adapters import linear_patterns

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
_ATOMS = (
    *("a", "b", "x", "A", "", "(?:a|b)", "(a)", "."),
    *(r"\d", r"\s", r"\w", r"\W", r"\D", r"\S", r"\.", r"\n", r"\-", "[ab]", "[^a]", r"[\d_]", "[a-z]", r"[^\s.]"),
)

_CHARACTERS = "aabbAB01 \n\t_.\x1c\x00\x7f\x0b-K\u0665\u2028\u00e9\u017f\u212a\u2603\ue000\ud800"


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    install(tmp_path_factory.mktemp("packages"), "google-re2==1.1.20251105")


def pattern(numbers: random.Random, depth: int) -> str:
    if not depth:
        return numbers.choice(_ATOMS)
    kind, inner = numbers.random(), pattern(numbers, depth - 1)
    if kind < 0.4:
        return inner + pattern(numbers, depth - 1)
    if kind < 0.55:
        return f"(?:{inner}|{pattern(numbers, depth - 1)})"
    return f"({inner}){numbers.choice(('*', '+', '?', '{2}', '{1,3}', '{0,}', '*?', '+?', '??', ''))}"


def test_re2_and_re_agree_on_20000_patterns() -> None:
    numbers = random.Random(5)
    taken = 0
    for _ in range(20_000):
        text = numbers.choice(("", "^", "(?i)")) + pattern(numbers, 3) + numbers.choice(("", "$"))
        linear = linear_patterns.in_linear_time(text)
        if linear is not None:
            taken += 1
            for _ in range(20):
                said = "".join(
                    numbers.choices(
                        "aabbAB01 \n\t_.\x1c\x00\x7f\x0b-K\u0665\u2028\u00e9\u017f\u212a\u2603\ue000",
                        k=numbers.randrange(8),
                    )
                )
                assert linear_patterns.matches(text, said) == (re.fullmatch(text, said, re.DOTALL) is not None), (
                    text,
                    said,
                )
    assert taken > 15_000


def test_a_catastrophe_of_re_takes_no_time() -> None:
    linear = linear_patterns.in_linear_time(r"(\w+\s?)+\.")
    assert linear is not None
    assert not linear("a" * 100_000)
