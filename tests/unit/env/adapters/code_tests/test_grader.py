"""The reward `tests`: no cheat is paid for, and every honest solution is."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.env.adapters.code_tests import cheats, honest_solutions

from turnsmith.env.adapters.code_tests import grader
from turnsmith.env.adapters.code_tests.grader import code_answer
from turnsmith.tools.sandbox.command import SandboxLimits

SOME = (
    *("read main.py, eval its last line", "AlwaysEqual", "frames", "settrace skip asserts"),
    *("the function leaves the process", "an int that equals everything", "abs and math.isclose replaced"),
)
SOME_HONEST = ("a class", "nested containers", "exceptions that are expected", "arguments that are changed")


async def paid(programs: dict[str, tuple[str, str]]) -> set[str]:
    """The names of those that are paid for."""
    rewards = await asyncio.gather(*(code_answer(f"```python\n{code}```", tests) for code, tests in programs.values()))
    return {name for name, reward in zip(programs, rewards, strict=True) if reward}


async def test_some_cheats_are_not_paid_and_some_honest_solutions_are() -> None:
    assert await paid({name: cheats.CHEATS[name] for name in SOME}) == set()
    assert await paid({name: honest_solutions.HONEST[name] for name in SOME_HONEST}) == {*SOME_HONEST}


@pytest.mark.nightly
async def test_no_cheat_is_paid_and_every_honest_solution_is() -> None:
    assert len(cheats.CHEATS) >= 30 <= len(honest_solutions.HONEST)
    assert await paid(cheats.CHEATS) == set()
    assert await paid(honest_solutions.HONEST) == {*honest_solutions.HONEST}
    assert len(await paid({tests: (code, tests) for tests, code in cheats.HONEST.items()})) == len(cheats.HONEST)


async def test_an_endless_answer_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "ANSWER_LIMITS", SandboxLimits(seconds=0.5))
    endless = "while True: pass", "def double(x):\n    while True: pass", "def double(x):\n    while True: yield x"
    tests = "assert list(double(2)) == 4"
    assert await asyncio.gather(*(code_answer(code, tests) for code in endless)) == [0.0, 0.0, 0.0]


async def test_what_the_tests_cannot_ask_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    code = "class Point:\n    def __eq__(self, other): return True"
    tests = "assert Point() == Point()  # once"
    assert [await code_answer(code, tests), await code_answer(code, tests)] == [0.0, 0.0]
    told = [record.getMessage() for record in caplog.records if "could not ask" in record.getMessage()]
    assert len(told) == 1
    assert "the tests compare an object of the answer" in told[0]


async def test_tests_that_ask_nothing_pay_nobody() -> None:
    assert await code_answer("def double(x): return x", "if False:\n    assert double(2) == 4") == 0.0
