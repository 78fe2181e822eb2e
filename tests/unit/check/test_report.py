"""What `turnsmith check` prints: the verdict first, then what is wrong; and the one form of its JSON."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from turnsmith import BaseEnvironment
from turnsmith.check.finding import Check, Finding, Result, run_check
from turnsmith.check.report import Report
from turnsmith.cli.main import main
from turnsmith.errors import ConfigError


class TwoFaults(BaseEnvironment):
    """The quickstart's game, whose start is not decided by the seed, and whose step raises."""

    def reset(self, seed: int = 0) -> str:
        self.number = random.SystemRandom().randint(1, 10**6)
        return f"{self.number}?"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", float(int(action) == self.number + 1), True, {}


def result(status: Any, code: str = "one", fix: str = "") -> Result:
    return Result(Check(code=code, name=f"check {code}", why="It matters."), Finding(status, "Seen.", fix), 0.5)


def test_an_environment_with_two_faults_fits_a_terminal_of_80_by_24(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    only = [word for code in ("same-opening", "any-text", "places", "template") for word in ("--only", code)]
    assert main(["check", f"{__name__}:TwoFaults", *only, "environment.isolation=thread"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 22, "beside the command and the next prompt"
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("TwoFaults (no model): 2 of 3 checks failed")
    assert [line.split()[0] for line in lines if line.startswith("FAILED")] == ["FAILED"] * 2
    assert lines[-2:] == ["1 passed: trackers and folders", "1 skipped: template"]


def test_what_failed_comes_before_what_warned_and_rows_only_if_they_are_asked_for() -> None:
    report = Report("game", [result("passed"), result("warning", "two", "Do."), result("failed", "three", "Do now.")])
    report.shown, report.more = ["shown"], ["more"]
    assert [line for line in report.lines() if line] == [
        "game: 1 of 3 checks failed, 1 warning, in 1.5 s",
        "FAILED  check three (--only three)",
        "        Seen.",
        "        why: It matters.",
        "        fix: Do now.",
        "WARNING check two (--only two)",
        "        Seen.",
        "        why: It matters.",
        "        fix: Do.",
        "1 passed: check one",
        "shown",
    ]
    verbose = report.lines(verbose=True)
    assert "ok      check one                          0.5 s  Seen." in verbose
    assert verbose[-2:] == ["shown", "more"]


def test_every_check_has_the_same_fields_in_json() -> None:
    report = Report("game", [result("passed"), result("failed")], facts={"machine": {}})
    told = report.as_dict()
    assert list(told) == ["turnsmith", "subject", "failed", "checks", "machine"]
    fields = {"code", "name", "status", "seconds", "ran", "saw", "why", "fix", "shown", "episodes"}
    assert {frozenset(one) for one in told["checks"]} == {frozenset(fields)}


def test_a_check_that_breaks_has_failed_and_says_where() -> None:
    def broken() -> Finding:
        raise KeyError("lost")

    def refused() -> Finding:
        raise ConfigError("There is no model.")

    check = result("passed").check
    assert "KeyError: 'lost' (line" in run_check(check, broken).finding.saw
    assert run_check(check, refused).finding.saw == "There is no model."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--machine", "--minutes", "3"], "--minutes goes with --rehearse"),
        (["--name", "mine"], "--name goes with --machine or --rehearse"),
        (["--seconds", "2"], "--seconds goes with --audit"),
        (["--from", "runs/mine"], "--from goes with --plan"),
        (["--machine", "--audit"], "not allowed with argument"),
        (["--plan", "--only", "memory"], "--only is for checks of an environment or a machine"),
    ],
)
def test_an_option_of_another_kind_of_check_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", *words])
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--machine", "--only", "nodes", "--name", "mine", "--output-dir", str(tmp_path)]
    assert main(words) == 1, "one machine has no other nodes, so nothing was checked"
    assert {file.name for file in (tmp_path / "mine").iterdir()} == {"check.json", "check.log", "check.txt"}
    assert main(words) == 2
    assert "choose another --name" in capsys.readouterr().err
