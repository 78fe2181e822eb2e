import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from docs.hooks.cli_reference import cli_reference

import turnsmith
from turnsmith.cli.main import _failed, build_parsers, main
from turnsmith.cli.train import read_config
from turnsmith.config_sources import from_dict
from turnsmith.errors import ConfigError, EnvironmentFailure, Preempted

GAME = "turnsmith.env.examples.guess_number:GuessNumber"


def test_a_mistake_is_one_line_on_stderr_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", GAME, "--dry-run", "training.batchsize=3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "turnsmith: There is no setting training.batchsize. Did you mean training.batch_size?\n"


@pytest.mark.parametrize(
    ("error", "status"), [(Preempted("Preempted."), 75), (EnvironmentFailure("No game."), 1), (ConfigError("No."), 2)]
)
def test_the_exit_status_says_what_ended_a_command(
    capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    assert _failed("train", error) == status
    assert capsys.readouterr().err == f"turnsmith: {error}\n"


def test_key_value_words_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", GAME, "training.a=1", "--model", "tiny", "training.b=2", "--dry-run", "x"]) == 2
    assert "training.a" in capsys.readouterr().err
    # Above the first setting is wrong; here only the last, so all settings before it were read.
    assert (
        main(["train", GAME, "training.seed=1", "--model", "tiny", "ray.num_nodes=2", "--dry-run", "ray.zzzz=1"]) == 2
    )
    assert "ray.zzzz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["train"], "name an environment"),
        (["train", GAME, "--modle", "x"], "unrecognized arguments: --modle"),
        (["train", "my.yaml", GAME], "a file with settings is given as --config my.yaml"),
        (["fly"], "invalid choice: 'fly'"),
        (["chekc"], "there is no command 'chekc'; did you mean check?"),
        (["model", "tiny", "a", "b=1"], "unrecognized arguments: b=1"),
    ],
)
def test_a_wrong_command_line_shows_the_usage(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert "usage: turnsmith" in shown
    assert sentence in shown


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "measure a model in your environment" in capsys.readouterr().out


def test_commands_stand_in_groups_and_two_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    listed = re.findall(r"^  ([a-z]+) +\S", shown.partition("\ntrain:\n")[2], re.MULTILINE)
    assert len(listed) <= 12
    assert set(build_parsers()) - {f"turnsmith {name}" for name in listed} == {
        "turnsmith", "turnsmith model", "turnsmith completion"
    }  # fmt: skip
    assert re.findall(r"^([a-z]+):$", shown, re.MULTILINE) == ["options", "train", "measure", "look", "use"]


@pytest.mark.parametrize("old", ["plan", "rehearse", "report", "selftest", "serve-env"])
def test_a_command_of_old_ends_with_a_sentence_that_names_the_new_one(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([old, "something", "--else"])
    assert caught.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"turnsmith: `turnsmith {old}` is now `turnsmith ")
    assert line.split("`")[3].split()[1] in ("check", "runs", "serve")


def test_a_model_or_an_environment_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["tiny", "--environment", GAME]):
        with pytest.raises(SystemExit):
            main(["serve", *words])
        assert "name a model or, with --environment, an environment" in capsys.readouterr().err


def test_without_linux_no_environment_is_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)  # which is no use there
    monkeypatch.delitem(sys.modules, "turnsmith.gateway.environment_server", raising=False)
    monkeypatch.setattr("turnsmith.env.isolation.settings.sys", SimpleNamespace(platform="darwin"))
    assert main(["serve", "--environment", GAME, "--port", "0"]) == 2
    assert "needs Linux" in capsys.readouterr().err


def test_a_training_run_is_named_as_other_runs_are(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("verl")
    assert main(["train", GAME, "--model", "tiny", "--name", "mine", "--output-dir", "o", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "run_name: mine" in printed
    assert "output_dir: o" in printed


def test_a_factory_that_cannot_be_called_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "json:loads"]) == 2
    assert "loads raised TypeError: the JSON object must be str" in capsys.readouterr().err


def test_settings_come_from_file_then_model_then_words(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"model: {{local_path: {tmp_path}, dtype: float32}}\ntraining: {{seed: 1, batch_size: 4}}\n")
    config = read_config(str(file), "smollm2", ["training.seed=2", "model.dtype=bfloat16"])
    assert (config.model.model_name, config.model.local_path, config.model.dtype) == ("smollm2", None, "bfloat16")
    assert (config.training.seed, config.training.batch_size) == (2, 4)
    assert read_config(None, "tiny", ["model.model_name=other"]).model.model_name == "other"


def test_a_model_that_is_a_folder_is_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_config(None, "weights", []).model.local_path == str(tmp_path / "weights")


def test_a_model_is_not_built_over_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("")
    assert main(["model", "tiny", str(tmp_path)]) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_the_reference_page_is_current() -> None:
    page = Path(turnsmith.__file__).parents[2] / "docs" / "reference" / "cli.md"
    assert page.read_text() == cli_reference(), "run: python -m docs.hooks.cli_reference > docs/reference/cli.md"


def test_the_help_fits_a_terminal_of_80_columns() -> None:
    for parser in build_parsers(width=80).values():
        assert max(map(len, parser.format_help().splitlines())) <= 80


def test_output_that_nobody_reads_is_no_traceback() -> None:
    command = f"{sys.executable} -m turnsmith --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_dry_run_prints_all_settings_and_the_verl_config(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("verl")
    assert (
        main(["train", GAME, "training.learning_rate=1e-4", "--model", "tiny", "--dry-run", "environment.highest=8"])
        == 0
    )
    settings, engine = yaml.safe_load_all(capsys.readouterr().out)
    assert (settings["model"]["model_name"], settings["environment"]["highest"]) == ("tiny", 8)
    assert from_dict(settings).training.learning_rate == engine["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-4
