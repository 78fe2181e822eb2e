"""Mathematical answers by their value, with the real math-verify."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e.packages import install
from turnsmith.concurrency.clocks import Clock
from turnsmith.env.adapters import scoring_process
from turnsmith.env.adapters.answers import math_answer
from turnsmith.errors import EnvironmentFailure

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    install(tmp_path_factory.mktemp("packages"), "math-verify==0.9.0", "latex2sympy2-extended==1.11.0")


@pytest.fixture(autouse=True)
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compares finds what is installed here."""
    import math_verify  # pyright: ignore[reportMissingImports]

    folder = str(Path(str(math_verify.__file__)).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"So \boxed{\frac{1}{2}}.", "0.5", 1.0),
        ("1/2", r"$\frac{2}{4}$", 1.0),
        ("x^2 + 2x + 1", "(x+1)^2", 1.0),
        (r"2\sqrt{3}", r"\sqrt{12}", 1.0),
        ("{2, 1}", r"\{1, 2\}", 1.0),
        ("Answer: 7 apples", "7", 1.0),
        ("3", "4", 0.0),
        ("(1, 2]", "(1, 2)", 0.0),
        ("3 or 4", "4", 0.0),
        ("", "4", 0.0),
        (r"\frac", "4", 0.0),
        ("1/0", "4", 0.0),
        ("9^9^9^9^9", "4", 0.0),
        ("1 + " * 2000 + "1", "2001", 0.0),
    ],
)
async def test_equal_is_what_has_the_same_value(response: str, answer: str, reward: float) -> None:
    assert await math_answer(response, answer) == reward


async def test_a_wrong_row_is_no_reward_of_zero() -> None:
    with pytest.raises(EnvironmentFailure, match=r"'\?\?' is not mathematics"):
        await math_answer("4", "??")


async def test_hostile_answers_cost_only_their_own_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring_process, "MATH_SECONDS", 0.5)

    async def play(said: str) -> float:
        async with Clock(10):  # less than all of them take, one after another
            return await math_answer(said, "2")

    answers = ["100000000!", "2"] * 16
    assert await asyncio.gather(*map(play, answers)) == [0.0, 1.0] * 16
