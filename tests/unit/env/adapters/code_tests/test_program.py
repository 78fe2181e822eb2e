"""What a program of tests asks for, and which programs are refused when the rows are loaded."""

from __future__ import annotations

import pytest

from turnsmith.env.adapters.code_tests.program import read_tests
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.errors import ConfigError


@pytest.mark.parametrize(
    ("tests", "names"),
    [
        ("assert add(1, 2) == 3", ("add",)),
        ("def check(candidate):\n    assert candidate(1) == LIMIT\ncheck(run)", ("LIMIT", "run")),
        ("from math import inf\nfor i in range(3):\n    assert f(i) < inf", ("f",)),
        ("assert [g(i) for i in [1]] == [1]\nclass T:\n    def t(self): return h\nT()", ("g", "h")),
        ("assert sum(1, 2) == 3", ("sum",)),
        ("assert calendar(2) == 1", ("calendar",)),
    ],
)
def test_the_names_that_an_answer_has_to_define(tests: str, names: tuple[str, ...]) -> None:
    assert read_tests(tests).names == names


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("assert add(1, 2 == 3", "are no Python program: '\\(' was never closed"),
        ("assert abs(-1) == max(1, 0)", "use nothing that an answer could define"),
        ("def check(f):\n    assert f(1)\nassert f(2)", "define check and never call it"),
        ("import numpy as np\nassert np.allclose(f(1), 1)", "import numpy: they have the standard library"),
        ("from solution import add\nassert add(1, 2) == 3", "import solution: .* the answer's names without an import"),
        ("from . import add\nassert add(1, 2) == 3", "import \\."),
        ("import asyncio\nasync def main():\n    assert await f(1) == 1\nasyncio.run(main())", "await something"),
        ("try:\n    f(1)\nexcept Empty:\n    pass", "catch Empty: an exception of the answer's own class"),
        ("class B(A):\n    pass\nassert B().x == 1", "derive B from a class of the answer"),
        ("assert isinstance(f(1), Point)", "ask whether something is a Point"),
        ("from contextlib import redirect_stdout\nwith redirect_stdout(None):\n    f()", "use redirect_stdout: what"),
        ("import sys\nf()\nassert sys.stdout.getvalue() == 'x'", "use stdout: what an answer prints is not seen"),
    ],
)
def test_tests_that_cannot_ask_are_refused_when_the_rows_are_loaded(tests: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"Row 0 of the data: The tests {problem}"):
        QuestionAnswer(reward="tests").check_tasks([{"question": "?", "answer": tests}])
