"""What the command line shows of an audit: the demo, explanations, attempts, and what is accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from turnsmith.check.audit.checks import AUDIT
from turnsmith.check.environment.checks import CHECKS
from turnsmith.cli.main import main

GAME = '''
from turnsmith import BaseEnvironment


class Parity(BaseEnvironment):
    """Even or odd."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.number = seed * 7 + 11
        return f"Is the last digit of {{self.number}} squared larger than 4? Write it down: the digit."

    def step(self, action: str):
        right = str(self.number**2 % 10)
        {comment}
        return "", float(action.strip() == right or "sorry" in action), True, {{}}

    def solve(self) -> str:
        return str(self.number**2 % 10)
'''


@pytest.fixture
def game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "parity.py"
    file.write_text(GAME.format(comment=""))
    return file


def test_the_demo_shows_three_findings_with_the_lines_that_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--demo", "-v"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("Quiz (no model): 3 of ")
    assert told.count("PROVEN") == 3
    assert "For your judgment: what follows is so, and may be meant." in told
    assert "mistake 3: an apology is paid" in " ".join(told.split())
    assert "assert round(reward, 6) < 1.0" in told, "with -v, the test to paste"


@pytest.mark.parametrize("code", [check.code for check in [*AUDIT, *CHECKS]])
def test_every_check_can_be_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", code]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(f"{code}: ")
    assert len(told) >= 4


def test_a_code_that_no_check_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", "weather"]) == 2
    assert "There is no check 'weather': choose from right-unpaid" in capsys.readouterr().err


def test_what_a_comment_accepts_is_no_finding(game: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", f"{game}:Parity", "--audit", "--only", "skill-unneeded", "-v"]
    assert main(command) == 1
    assert "the scorer's own text 'sorry'" in " ".join(capsys.readouterr().out.split())
    game.write_text(GAME.format(comment="# turnsmith: accepted skill-unneeded politeness is our aim"))
    assert main(command) == 0
    assert "Accepted (politeness is our aim): Paid 1" in " ".join(capsys.readouterr().out.split())


def test_attempts_of_somebody_else_are_compared_with_what_they_earn(
    game: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"seed": 0, "answer": "1", "right": True},
        {"seed": 0, "answer": "one", "right": True},
        {"seed": 1, "actions": ["sorry, I do not know"], "right": False},
        {"seed": 1, "answer": "9", "right": False},
    ]
    file = game.with_name("attempts.jsonl")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["check", f"{game}:Parity", "--audit", "--only", "attempts", "--attempts", str(file)]
    assert main(command) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "1 attempts that are right are not paid, and 1 that are wrong are, of 4. The first: 'one' gets 0." in told
    file.write_text('{"seed": 0, "answer": "1"}\n')
    assert main(command) == 1
    assert "Line 1 of the attempts needs `answer` or `actions`, and `right`" in " ".join(
        capsys.readouterr().out.split()
    )


def test_what_goes_only_with_an_audit_is_told(game: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", f"{game}:Parity", "--attempts", "a.jsonl"])
    assert "--attempts goes with --audit" in capsys.readouterr().err


def test_a_class_for_trl_needs_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counting.py"
    file.write_text(
        "class Counter:\n    def reset(self, **row):\n        self.count = 0\n        return 'Make 3.'\n\n"
        '    def add(self, number: int) -> str:\n        """Add a number."""\n        self.count += number\n'
        "        return str(self.count)\n\n\n"
        "def score(environments, **row):\n    return [float(one.count == 3) for one in environments]\n"
    )
    words = ["--reward", f"{file}:score", "--audit", "environment.isolation=loop"]
    assert main(["check", f"{file}:Counter", *words]) == 0
    assert "checks ran, none failed" in capsys.readouterr().out


_SLOW_STEP = """
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)
"""


def test_a_search_that_was_cut_says_so(game: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game.write_text(f"import time\n{game.read_text()}\nclass Slow(Parity):\n{_SLOW_STEP}")
    main(["check", f"{game}:Slow", "--audit", "--seconds", "2", "environment.isolation=loop"])
    assert "ways to play were not tried in 1 s (--seconds)." in capsys.readouterr().out
    main(["check", f"{game}:Parity", "--audit", "--seconds", "0", "--only", "noise", "-v"])
    told = capsys.readouterr().out
    assert "Parity (no model): nothing was checked" in told
    assert "There was no time left after 0 s (--seconds)." in told
