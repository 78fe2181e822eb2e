"""What scripts and shells use: results as JSON, completion, and a sentence where an extra is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from turnsmith import RunFolder
from turnsmith.cli import train
from turnsmith.cli.main import main
from turnsmith.importing import install_line

GAME = "turnsmith.env.examples.guess_number:GuessNumber"


def test_eval_writes_its_result_as_json(tmp_path: Path, tiny_folder: str) -> None:
    file = tmp_path / "a new folder" / "result.json"
    words = ["--episodes", "4", "--output-dir", str(tmp_path), "inference.max_tokens=4", "inference.max_turns=2"]
    assert main(["eval", GAME, "--model", "tiny", "--json", str(file), *words]) == 0
    found = json.loads(file.read_text())
    assert found["is_complete"] is True
    assert 0.0 <= found["success/low"] <= found["success/mean"] <= found["success/high"] <= 1.0
    assert RunFolder.open(found["run"]).read_metrics()[-1]["reward/mean"] == found["reward/mean"]


def test_eval_says_if_the_file_cannot_be_written(
    tmp_path: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a file").touch()
    file = str(tmp_path / "a file" / "result.json")
    words = ["--episodes", "2", "--output-dir", str(tmp_path), "inference.max_tokens=4", "inference.max_turns=1"]
    assert main(["eval", GAME, "--model", "tiny", "--json", file, *words]) == 2
    assert f"{file} cannot be written: Not a directory." in capsys.readouterr().err


def test_runs_are_listed_and_shown_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create(tmp_path, "Game-1")
    run.append_metrics({"step": 3, "reward/mean": 0.25})
    run.append_event("finished")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    found = {one["run"]: one for one in json.loads(capsys.readouterr().out)}
    assert (found["Game-1"]["state"], found["Game-1"]["steps"], found["Game-1"]["reward"]) == ("finished", 3, 0.25)
    assert found["broken"]["state"] == "damaged"
    assert main(["runs", "show", str(run.path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run"], shown["metrics"]["reward/mean"]) == ("Game-1", 0.25)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["turnsmith", "tra"], {"train"}),
        (["turnsmith", "train", "--dry"], {"--dry-run"}),
        (["turnsmith", "train", "training.batch"], {"training.batch_size="}),
        (["turnsmith", "eval", "--js"], {"--json"}),
        (["turnsmith", "runs", "report", "my_"], {"my_game.py"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "my_game.py").write_text("")
    done = subprocess.run([sys.executable, "-m", "turnsmith", "completion", "bash"], capture_output=True, check=True)
    ask = f'COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _turnsmith; printf "%s\\n" "${{COMPREPLY[@]}}"'
    (tmp_path / "script").write_bytes(done.stdout)
    told = subprocess.run([bash, "-c", f". ./script; {ask}"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(told.stdout.split()) == expected


def test_zsh_gets_the_same_with_its_own_opening(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit && bashcompinit\n_turnsmith() {")


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def without_verl(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'omegaconf'", name="omegaconf.errors")

    monkeypatch.setattr(train, "_print_settings", without_verl)
    assert main(["train", GAME, "--model", "tiny", "--dry-run"]) == 2
    sentence = "`turnsmith train` needs omegaconf, which is not installed: " + install_line("cpu")
    assert sentence in capsys.readouterr().err


def test_a_module_that_is_missing_elsewhere_is_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_something(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'mine'", name="mine")

    monkeypatch.setattr(train, "_print_settings", without_something)
    with pytest.raises(ModuleNotFoundError):
        main(["train", GAME, "--model", "tiny", "--dry-run"])
