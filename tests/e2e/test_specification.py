"""The blocks of the specification's five documents that train, executed from their texts.

`tests/unit/test_specification.py` has the others, and `tests/specification.py` the table of what is replaced in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from transformers import AutoTokenizer

from tests.specification import Script, executes, needs_documents, without_template
from turnsmith import ConfigStore, RayPPOTrainer, Trajectory, read_episodes

pytestmark = [pytest.mark.e2e, needs_documents]


def small(config: ConfigStore) -> ConfigStore:
    """Sizes for seconds; and the tiny model, where the document names none."""
    if config.model.model_name == ConfigStore().model.model_name:
        config.model.model_name = "tiny"
    config.inference.max_tokens, config.inference.max_turns = 8, 2
    config.training.batch_size, config.training.group_size = 8, 4
    config.training.steps_per_epoch = 1
    return config


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A namespace to execute blocks in; afterwards, those that the test is marked with have been."""
    monkeypatch.chdir(tmp_path)
    typed = Script()
    typed.names["small"] = small
    yield typed
    typed["trainer"].cleanup()
    assert set(request.function.blocks) <= set(typed.executed)


def trained(trainer: RayPPOTrainer) -> list[tuple[int, int]]:
    """Epoch and step of each record."""
    assert all(record["rollout_diff/max"] < 0.1 for record in trainer.metrics_history)
    return [(record["epoch"], record["step"]) for record in trainer.metrics_history]


def episodes(trainer: RayPPOTrainer) -> list[Trajectory]:
    assert trainer.run is not None
    return list(read_episodes(trainer.run.path))


@executes("readme-04", "readme-17", "readme-18", "readme-19")
def test_the_quick_start_on_a_model_without_a_chat_template(
    script: Script, tiny_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.model = without_template(tiny_folder, tmp_path / "model")
    trainer = script.run("readme-01").run("readme-02").run("readme-03").run("readme-04")["trainer"]
    assert trained(trainer) == [(0, 1), (1, 2)]
    assert {(episode.score, *episode.rewards) for episode in episodes(trainer)} == {(2.0, 1.0, 1.0)}
    script.run("readme-17")
    assert trained(trainer)[2:] == [(2, 3), (3, 4), (4, 5), (4, 6), (5, 7), (5, 8)]
    capsys.readouterr()
    script.run("readme-18", Path=Path)
    assert any(Path("checkpoints/epoch_5").iterdir())
    assert trainer.run is not None
    assert [event["step"] for event in trainer.run.read_events() if event["kind"] == "loaded"] == [8]
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch ")]
    assert told == [f"Epoch {record['epoch']}: {record['policy_loss']}" for record in trainer.metrics_history]
    assert len(told) == 8
    script.run("readme-19")
    left = [process for process in psutil.Process().children(recursive=True) if "ray" in " ".join(_command(process))]
    assert left == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@executes("readme-20")
def test_the_simple_text_game(script: Script) -> None:
    trainer = script.run("readme-20")["trainer"]
    assert trained(trainer) == [(epoch, epoch + 1) for epoch in range(5)]
    for episode in episodes(trainer):
        assert episode.score == pytest.approx(sum(episode.rewards))
        assert set(episode.rewards) <= {-0.1, 1.0, 5.0}


@executes("trainer-notes-13", "trainer-notes-03")
def test_running_training(script: Script, tiny_folder: str) -> None:
    script.run("trainer-notes-13", tokenizer=AutoTokenizer.from_pretrained(tiny_folder))
    assert trained(script["trainer"]) == [(0, 1), (1, 2)]
    script.run("trainer-notes-03")
    assert trained(script["trainer"])[2:] == [(2, 3), (3, 4)]


@executes("manifest-03")
def test_simple_multi_turn_rl_with_the_manifests_settings(script: Script) -> None:
    script.names["config"] = small(ConfigStore())
    script.run("readme-01").run("readme-03").run("manifest-05")
    script.run("manifest-03", MyEnv=script["MyEnvironment"], RayPPOTrainer=RayPPOTrainer)
    assert trained(script["trainer"]) == [(0, 1)]
    assert {episode.score for episode in episodes(script["trainer"])} == {2.0}
