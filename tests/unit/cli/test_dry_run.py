"""`turnsmith train --dry-run` refuses what `train` would refuse before it starts Ray, and starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnsmith.cli.main import main

GAMES = """
from turnsmith import BaseEnvironment

class Good(BaseEnvironment):
    def reset(self):
        return "Say a"

    def step(self, action):
        return "Thanks", 1.0, True, {}

class Tasks(Good):
    def reset(self, task):
        return task["question"]

class NoneReward(Good):
    def step(self, action):
        return "Thanks", None, True, {}

class Long(Good):
    def reset(self):
        return "word " * 5000
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: str) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.py").write_text(GAMES)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?"}\n')
    (tmp_path / "broken.jsonl").write_text('{"question": \n')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("games.py:Tasks", 2, "Tasks.reset takes a task, but this episode has none"),
        ("games.py:Tasks --data row.jsonl", 2, "row.jsonl"),
        ("games.py:Tasks --data broken.jsonl", 2, "broken.jsonl"),
        ("games.py:Tasks --data rows.jsonl evaluation.every=1", 2, "held-out"),
        ("games.py:Good --output-dir /proc/runs", 2, "Cannot create a run folder in /proc/runs"),
        ("games.py:NoneReward", 1, "NoneReward.step returned the reward None"),
        ("games.py:Long", 1, "4 of 4 openings have more tokens than the 2048 allowed"),
    ],
)
def test_what_train_refuses_is_refused(
    words: str, code: int, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *words.split(), "--model", "tiny", "environment.isolation=thread", "--dry-run"]
    assert main(command) == code
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.out == ""
    assert not (folder / "runs").exists()


def test_what_train_warns_of_is_told_beside_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    data = "--data rows.jsonl --validation rows.jsonl evaluation.every=1"
    words = ["train", "games.py:Tasks", *data.split(), "--model", "tiny", "environment.isolation=thread", "--dry-run"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "1 of 1 held-out tasks are among the 1 tasks of training." in printed.err
    assert "\n# turnsmith: all settings\n" in printed.out
    assert main([*words, "training.check=false"]) == 0
    assert capsys.readouterr().err == ""
