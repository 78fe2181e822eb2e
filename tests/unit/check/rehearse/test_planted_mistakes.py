"""Mistakes that would be noticed in a queued job: the part of a rehearsal that is for each finds it without a run."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.check.environment.test_templates import PYTHON_CALLS
from tests.unit.inference.conftest import make_byte_tokenizer
from tests.unit.test_cluster_page import file

from turnsmith import BaseEnvironment
from turnsmith.check.rehearse import before
from turnsmith.check.rehearse.run import Rehearsal
from turnsmith.check.report import Report
from turnsmith.cli.main import main
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.examples import GuessNumber
from turnsmith.importing import add_to_path

CLUSTER = [
    "ray.address=auto",
    "ray.num_nodes=4",
    "ray.gpus_per_node=8",
    "model.tensor_parallel_size=2",
    "training.batch_size=512",
    "training.mini_batch_size=256",
    "evaluation.every=10",
]
GUESS = "turnsmith.env.examples:GuessNumber"


class FewSeeds(GuessNumber):
    """Has levels for the seeds of training only."""

    def reset(self, seed: int = 0) -> str:
        if seed >= 1000:
            raise KeyError(f"no level {seed}")
        return super().reset(seed)


class Locked(BaseEnvironment):
    """Holds something that cannot be sent to another process."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def reset(self) -> str:
        return "Say yes."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 1.0, True, {}


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Makes the folder of a model without weights."""
    from transformers import LlamaConfig

    def make(**sizes: Any) -> str:
        folder, small = tmp_path / "model", dict[str, Any]({"num_hidden_layers": 2, "max_position_embeddings": 8192})
        LlamaConfig(vocab_size=512, **{**small, **sizes}).save_pretrained(folder)
        make_byte_tokenizer().save_pretrained(folder)
        return str(folder)

    return make


@pytest.fixture(autouse=True)
def no_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's own validation is tested on every layout elsewhere, and takes longest to import."""
    passed = before.Finding("passed", "not asked")
    monkeypatch.setattr(before, "check_full_layout", lambda config, model_path, folder: passed)


def rehearse(folder: Path, model: str, *settings: str, environment: Any = GUESS) -> Report:
    """What is found before a run."""
    (folder / "runs").mkdir(exist_ok=True)
    config = apply_overrides(ConfigStore(), [*CLUSTER, "checkpoint.output_dir=runs", *settings])
    config.model.local_path = model
    result = Rehearsal(config, environment, [], folder).run(only_before=True)
    print(*result.lines(verbose=True), sep="\n")
    return result


def found(result: Report) -> dict[str, str]:
    return {one.check.name: one.finding.saw for one in result.results if one.finding.status == "failed"}


@pytest.mark.parametrize(
    ("settings", "part", "words"),
    [
        (["training.batch_size=500"], "settings", "not a multiple of training.group_size=8"),
        (["training.mini_batch_size=16"], "settings", "do not divide evenly over 32 ranks"),
        (["inference.max_prompt_tokens=16"], "an episode opens", "do not fit into max_prompt_tokens=16"),
        (["inference.max_episode_tokens=4000"], "model", "the model's context has 4096"),
        (["model.tensor_parallel_size=8"], "model", "6 attention heads, which model.tensor_parallel_size=8 does not"),
        (["checkpoint.output_dir=model/config.json/runs"], "trackers and folders", "cannot be written to"),
        (["checkpoint.keep_last_n=0", "training.num_epochs=1000000"], "disk for the whole run", "GiB are free in"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_setting_that_does_not_fit(
    settings: list[str],
    part: str,
    words: str,
    tmp_path: Path,
    model: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "folders" in part:
        settings = [*settings, "ray.address=null", "ray.num_nodes=1", "model.device=cuda"]
    folder = model(num_attention_heads=6, hidden_size=192, max_position_embeddings=4096)
    result = found(rehearse(tmp_path, folder, "inference.max_episode_tokens=1000", *settings))
    assert part in result
    assert words in result[part]


def test_without_a_mistake_nothing_is_found(tmp_path: Path, model: Callable[..., str]) -> None:
    result = rehearse(tmp_path, model())
    assert found(result) == {}
    warned = {one.check.name for one in result.results if one.finding.status == "warning"}
    assert warned == {"held-out starts are held out"}, "its seeds only change what the model does not see"


@pytest.mark.nightly  # it plays with a real model in worker processes
def test_starts_of_evaluation_that_crash(tmp_path: Path, model: Callable[..., str]) -> None:
    result = found(rehearse(tmp_path, model(), environment=FewSeeds))
    assert "no level 1000000" in result["starts of evaluation"]


def test_a_parser_that_does_not_fit_the_model(tmp_path: Path, model: Callable[..., str]) -> None:
    folder = Path(model())
    make_byte_tokenizer(PYTHON_CALLS).save_pretrained(folder)
    given = {"environment": "turnsmith.env.examples:Calculator"}
    result = found(rehearse(tmp_path, str(folder), "inference.tool_format=native", **given))
    assert "are not read as they were written" in result["call format"]


def test_an_environment_that_only_this_folder_has(
    tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rehearsed_game.py").write_text(f"from {GUESS.replace(':', ' import ')} as Game\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.syspath_prepend(tmp_path)
    add_to_path(tmp_path)  # as the command line does
    name, folder = "rehearsed_game:Game", model()
    result = found(rehearse(tmp_path, folder, environment=name))
    assert "There is no module 'rehearsed_game'" in result["environment elsewhere"]
    one = ["ray.num_nodes=1", "ray.address=null", "model.device=cuda"]
    assert "environment elsewhere" not in found(rehearse(tmp_path, folder, *one, environment=name))


def test_an_environment_that_cannot_be_sent_to_a_worker(tmp_path: Path, model: Callable[..., str]) -> None:
    environment = functools.partial(Locked, threading.Lock())
    result = found(rehearse(tmp_path, model(), environment=environment))
    assert "cannot be sent to a worker process" in result["environment elsewhere"]


@pytest.mark.parametrize(("more", "code"), [([], 0), (["training.batch_size=500"], 1)])
def test_the_command_writes_what_it_found(
    more: list[str], code: int, tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "cluster.yaml").write_text(file("cluster.yaml"))
    words = ["check", GUESS, "--rehearse", "cluster.yaml", "--model", model(), "--no-run", *more]
    assert main(words) == code
    (written,) = tmp_path.glob("checks/rehearsal-*/check.json")
    result = json.loads(written.read_text())
    assert result["failed"] == code
    assert ("FAILED" in written.with_suffix(".txt").read_text()) is bool(code)
    assert {"settings", "model", "environment elsewhere"} <= {one["name"] for one in result["checks"]}
    with pytest.raises(SystemExit):
        main(["check", "--rehearse", "cluster.yaml", "training.batch_size=64"])  # nothing to train in


def test_held_out_rows_are_compared_and_given_to_the_run(
    tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(file("cluster.yaml"))
    rows = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(8)]
    (tmp_path / "rows.json").write_text(json.dumps(rows[:6]))
    (tmp_path / "held_out.json").write_text(json.dumps(rows[5:]))
    words = ["--data", "rows.json", "--validation", "held_out.json", "--reward", "exact"]
    made = list[Rehearsal]()
    plain = Rehearsal.run
    monkeypatch.setattr(Rehearsal, "run", lambda self, **how: made.append(self) or plain(self, **how))
    assert main(["check", "--rehearse", "cluster.yaml", *words, "--model", model(), "--no-run"]) == 1
    assert "1 of 3 held-out tasks are among" in found(made[0].report)["held-out starts are held out"]
    assert sorted(made[0]._words) == sorted(words)


def test_the_curriculum_of_a_mix_is_given_to_the_run(
    tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(file("cluster.yaml"))
    made = list[Rehearsal]()
    monkeypatch.setattr(Rehearsal, "run", lambda self, **how: made.append(self) or self.report)
    mix = [f"{GUESS}=3", "turnsmith.env.examples:Calculator=1"]
    assert main(["check", "--rehearse", "cluster.yaml", *mix, "--curriculum", "--model", model()]) == 0
    assert made[0]._words == [*mix, "--curriculum"]
    assert made[0]._environment.curriculum
