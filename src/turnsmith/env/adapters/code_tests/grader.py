"""Lets a program of tests ask an answer's code, each in a sandbox of its own."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

from turnsmith.env.adapters.code_tests.program import TestProgram, read_tests
from turnsmith.env.adapters.final_answers import MOST_CHARACTERS, code_in
from turnsmith.env.adapters.scoring_process import tell_once
from turnsmith.tools.sandbox.command import MIB, SandboxLimits
from turnsmith.tools.sandbox.session import open_dialogue

ANSWER_LIMITS = SandboxLimits()
TEST_LIMITS = SandboxLimits(seconds=2 * ANSWER_LIMITS.seconds, memory=256 * MIB)
"""A pool of its own: grading needs one of each, so that two answers cannot wait for each other."""
_MOST_BYTES = 4 * MIB


def check_tests(answer: Any) -> None:
    """Raise an EnvironmentFailure if these tests cannot ask an answer in another process.

    Example:
        >>> check_tests("assert add(2, 2) == 4")
    """
    read_tests(str(answer))


async def code_answer(response: str, answer: Any) -> float:
    """Pay for Python code with which a program of tests, the answer, runs to its end.

    The code may stand in a code block. It runs in a sandbox alone. The tests run in another, which asks for the values
    of calls and compares them itself, as plain data: nothing that the code does can see or change the tests.
    """
    code, tests = code_in(response), read_tests(str(answer))
    return await _grade(code, tests) if len(code) <= MOST_CHARACTERS else 0.0


async def _grade(code: str, tests: TestProgram) -> float:
    asking = f"{_side('tests_side')}Tests().run({tests.code!r}, {tests.names!r}, {tests.modules!r})"
    asked = f"{_side('answer_side')}AskedCode({code!r}).serve()"
    async with (
        open_dialogue(asked, ANSWER_LIMITS, _MOST_BYTES) as answer,
        open_dialogue(asking, TEST_LIMITS, _MOST_BYTES) as test,
    ):
        try:
            async with asyncio.timeout(ANSWER_LIMITS.seconds):
                while (line := await test.hear()).startswith(b"?"):
                    await answer.say(line[1:])
                    reply = await answer.hear()
                    if not reply:
                        return 0.0  # it has ended
                    await test.say(reply)
        except TimeoutError:
            return 0.0
    return _reward(line, tests)


def _reward(line: bytes, tests: TestProgram) -> float:
    """The verdict in the tests' last line; only their sandbox can write it."""
    if not line.startswith(b"!"):
        return 0.0  # out of memory, for example
    ending = json.loads(line[1:])
    verdict, reason = ending["verdict"], ending["reason"]
    if verdict == "passed" and not ending["asked"]:
        verdict, reason = "refused", "they passed without asking it for anything"
    if verdict == "refused":
        tell_once(
            tests.code, "Tests could not ask an answer, which was worth 0: %s. They begin %r.", reason, tests.code[:80]
        )
    return float(verdict == "passed")


@cache
def _side(name: str) -> str:
    """The code that a sandbox runs before its program: `plain_data` and one side, without imports of turnsmith."""
    files = [Path(__file__).with_name(f"{file}.py").read_text(encoding="utf-8") for file in ("plain_data", name)]
    side = [line for line in files[1].splitlines() if not line.startswith(("from turnsmith", "from __future__"))]
    return "\n".join([files[0], *side, ""])
