"""Several environments on the command line, and a run with a mix that is resumed from its folder alone."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnsmith import ConfigStore, EnvironmentConfig, EnvironmentMix, EnvironmentSpec, MixMember, RunFolder
from turnsmith.cli.main import main
from turnsmith.config_sources import to_dict
from turnsmith.env.examples import GuessNumber
from turnsmith.errors import RecordError
from turnsmith.records.episodes import read_episodes
from turnsmith.rollout.spec import EpisodeParts
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.mix_dataset import MixDataset
from turnsmith.trainer.resume import Recipe, reopen
from turnsmith.trainer.run_parts import RunParts
from turnsmith.viewer.curves import curves_of
from turnsmith.viewer.run_view import read_run

GUESS = "turnsmith.env.examples:GuessNumber"
GAME = "turnsmith.env.examples:SimpleGameEnvironment"


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def test_environments_with_weights_are_evaluated_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["inference.max_tokens=4", f"{GUESS}=3", "inference.max_turns=2", GAME]
    assert main(["eval", *words, "--model", "tiny", "--episodes", "12", "--name", "mine"]) == 0
    played = [one.environment for one in read_episodes(tmp_path / "runs" / "mine")]
    assert {"GuessNumber", "SimpleGameEnvironment"} == set(played)
    assert played.count("GuessNumber") > 6
    assert max(one.num_turns for one in read_episodes(tmp_path / "runs" / "mine")) == 2
    metrics = RunFolder.open(tmp_path / "runs" / "mine").read_metrics()[0]
    assert metrics["environment/GuessNumber/episodes"] == played.count("GuessNumber")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([f"{GUESS}=0", GAME], "has the weight 0.0 in the mix; it must be a number above 0"),
        ([f"{GUESS}=lots", GAME], "the weight of an environment is a number, as in"),
        ([f"{GUESS}=2", GUESS], "Two environments of the mix are called GuessNumber"),
        ([f"{GUESS}=2", "turnsmith.env.examples:Nothing"], "Nothing, in the mix: "),
    ],
)
def test_what_cannot_work_is_said_in_words(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words, "--dry-run"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([GUESS, GAME, "--data", "tasks.jsonl"], "--agent and --data are for a single environment"),
        ([GUESS, "--curriculum"], "--curriculum is for several environments"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", *words])
    assert sentence in capsys.readouterr().err


def test_a_mix_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(
        f'from turnsmith import EnvironmentMix\nMIX = EnvironmentMix({{"a": "{GUESS}"}})\n'
    )
    assert main(["serve", "--environment", "mine.py:MIX"]) == 2
    assert "is a mix of environments: serve each of them" in capsys.readouterr().err


def started(tmp_path: Path, given: EnvironmentMix) -> RunFolder:
    """A run that was killed before its first checkpoint."""
    config = ConfigStore()
    config.model.model_name = "tiny"
    run = RunFolder.create(tmp_path, "run")
    run.write_config(to_dict(config))
    mix: Any = EnvironmentSpec.of(given, config.environment)
    dataset = MixDataset.of_mix(mix)
    dataset.save(run.path, seed=4)
    Recipe.of(config, RunParts.of(config, EpisodeParts(), mix, dataset), 8, Epochs(2)).write(run.path)
    return run


def test_a_mix_is_found_again_with_everything_that_belongs_to_it(tmp_path: Path) -> None:
    given = {
        "guess": MixMember(EnvironmentSpec(GuessNumber, EnvironmentConfig(highest=9)), weight=3, reward_range=(0, 2)),
        "game": MixMember(GAME, max_turns=4, max_seconds=9.5, dataset=[{"n": 1}, {"n": 2}]),
    }
    run = started(tmp_path, EnvironmentMix(given, curriculum=True))
    stopped = reopen(run.path, {})
    mix, dataset = stopped.parts["environment"], stopped.parts["dataset"]
    assert isinstance(dataset, MixDataset)
    assert (mix.weights, dataset.weights, dataset.by_success) == (dataset.weights, {"guess": 3, "game": 1}, True)
    assert mix.members["guess"].reward_range == (0, 2)
    assert mix.members["guess"].environment.build().config.highest == 9
    assert (mix.members["game"].max_turns, mix.members["game"].max_seconds) == (4, 9.5)
    rows = [dataset.start(index) for index in range(8)]
    assert [row["task"] for row in rows if row["environment"] == "game"] == [{"n": 1}, {"n": 2}]
    assert [row["seed"] for row in rows if row["environment"] == "guess"] == [4, 5, 6, 7, 8, 9]
    assert read_run(run).environment == "mix of guess, game"


def test_what_has_no_name_must_be_passed_again(tmp_path: Path) -> None:
    mix = EnvironmentMix({"guess": partial(GuessNumber, {"highest": 4}), "game": GAME})
    run = started(tmp_path, mix)
    with pytest.raises(RecordError, match=r"its environment \(the guess of its mix, GuessNumber\) cannot be imported"):
        reopen(run.path, {})
    assert reopen(run.path, {"environment": mix}).parts["environment"] is mix


def test_a_mix_in_a_module_is_resumed_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from functools import partial\n"
        "from turnsmith import EnvironmentMix\n"
        "from turnsmith.env.examples import GuessNumber\n"
        'MIX = EnvironmentMix({"a": (partial(GuessNumber, {"highest": 4}), 2)})\n'
    )
    run = started(tmp_path, EnvironmentSpec.of("mine.py:MIX"))  # type: ignore[arg-type]
    assert json.loads((run.path / "resume.json").read_text())["environment"].endswith("mine.py:MIX")
    assert reopen(run.path, {}).parts["environment"].weights == {"a": 2.0}


def test_the_report_has_a_line_for_each_environment() -> None:
    def step(number: int, reward: float) -> dict[str, float]:
        told = {f"environment/{name}/{what}": reward for name in ("a", "b/c") for what in ("reward", "success")}
        return {"step": number, "reward/mean": reward, "environment/a/episodes": 12, **told}

    charts = {chart.title: chart for chart in curves_of([step(1, 0.5), step(2, 1.0)]).charts}
    assert [line.name for line in charts["Reward by environment"].series] == ["a", "b/c"]
    assert charts["Success by environment"].series[1].values == [0.5, 1.0]
    assert charts["Episodes by environment"].series[0].values == [12, 12]
    assert "Reward by environment" not in {chart.title for chart in curves_of([{"step": 1, "reward/mean": 1}]).charts}
