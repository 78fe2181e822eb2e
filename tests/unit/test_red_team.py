"""Attacks on everything that reads files of others: run folders and config files.

Each makes a real attempt; `witness` is a folder that exists afterwards only if code of the attacker ran. What is
defended against, and what is not, is in docs/threat-model.md. Attacks from the folder of a model are in
test_red_team_models.py, those through words in test_red_team_words.py, of model-written code in tools/sandbox.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides, from_dict, load, to_dict
from turnsmith.env import EnvironmentSpec
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError, RecordError, TurnsmithError
from turnsmith.records.checkpoints import PendingCheckpoint, best_checkpoint, newest_checkpoint
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.resume import Recipe, reopen
from turnsmith.trajectory import Outcome, Trajectory

DEEP = 100_000


class Planted:
    """Unpickling it leaves the witness."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.witness),)


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that only an attacker's code makes. Keys and caches of this test are its own."""
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path / "user"))
    return tmp_path / "witness"


def test_witness_tells(witness: Path) -> None:
    pickle.loads(pickle.dumps(Planted(witness)))  # noqa: S301
    assert witness.exists()


# ---- run folders


@pytest.fixture
def run(tmp_path: Path, witness: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    made.write_config(to_dict(ConfigStore()))
    CustomEnvironmentDataset().save(made.path, seed=0)
    settings = ConfigStore().environment
    recipe = Recipe()
    recipe.add_environment(EnvironmentSpec.of(GuessNumber, settings), settings)
    recipe.write(made.path)
    return made


def read_all(run: RunFolder) -> None:
    opened = RunFolder.open(run.path)
    opened.read_metrics(), opened.read_ledger(), opened.read_events(), opened.read_evaluations()
    read_episodes(opened)
    Recipe.read(run.path)
    load(run.path / "config.yaml")


FILES = ("run.json", "config.yaml", "resume.json", "metrics.jsonl", "ledger.jsonl", "episodes/step-00000001-0.parquet")


@pytest.mark.parametrize("name", FILES)
def test_pickle_in_place_of_a_file_is_an_error_and_never_loaded(name: str, run: RunFolder, witness: Path) -> None:
    (run.path / name).write_bytes(pickle.dumps(Planted(witness), protocol=0) + b"\n")
    with pytest.raises(TurnsmithError):
        read_all(run)
    assert not witness.exists()


def test_pickle_in_place_of_events_is_passed_over_and_never_loaded(run: RunFolder, witness: Path) -> None:
    (run.path / "events.jsonl").write_bytes(pickle.dumps(Planted(witness), protocol=0) + b"\n")
    assert run.read_events() == []
    assert not witness.exists()


HOSTILE_JSON = ['{"format": Infinity}', '{"format": 1e999}', "[" * DEEP, '{"a":' * DEEP, "\0", "null"]


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=lambda text: repr(text[:20]))
@pytest.mark.parametrize("name", ["run.json", "resume.json", "metrics.jsonl"])
def test_hostile_json_is_an_error_in_words(name: str, text: str, run: RunFolder) -> None:
    (run.path / name).write_text(text + "\n")
    with pytest.raises(RecordError, match="damaged"):
        read_all(run)


@pytest.mark.parametrize("text", ['{"step": Infinity}', "[" * DEEP, "null"])
def test_hostile_marks_in_a_checkpoint_folder_are_passed_over(text: str, run: RunFolder) -> None:
    (run.checkpoints_dir / "best.json").write_text(text)
    assert best_checkpoint(run.checkpoints_dir) is None
    PendingCheckpoint(run.checkpoints_dir, 1).commit()
    (run.checkpoints_dir / "global_step_1" / "manifest.json").write_text(text)
    with pytest.raises(RecordError, match="cannot be read"):
        newest_checkpoint(run.checkpoints_dir)


def test_checkpoint_of_another_is_refused_before_its_pickles_are_read(run: RunFolder, witness: Path) -> None:
    draft = PendingCheckpoint(run.checkpoints_dir, 1)
    (draft.path / "optimizer.pt").write_bytes(pickle.dumps(Planted(witness)))
    draft.seal()
    draft.commit()
    shutil.rmtree(os.environ["TURNSMITH_CACHE"])  # now it was another user who signed it
    with pytest.raises(RecordError, match="if you trust them"):
        newest_checkpoint(run.checkpoints_dir)
    assert not witness.exists()


def test_run_folder_of_another_is_not_resumed_without_trust(
    run: RunFolder, witness: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the code that resuming imports, and where to import it from."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (run.path / "planted.py").write_text(f"import os; os.mkdir({str(witness)!r})\nclass Game: pass\n")
    recipe = json.loads((run.path / "resume.json").read_text())
    forged = {**recipe, "environment": "planted:Game", "reward_fn": "planted:Game", "import_path": [str(run.path)]}
    for signature in (recipe["signature"], "", None):
        (run.path / "resume.json").write_text(json.dumps({**forged, "signature": signature}))
        with pytest.raises(RecordError, match="if you trust it, pass trust=True"):
            reopen(run.path, {})
    assert not witness.exists()
    with pytest.raises(ConfigError, match="is not an environment"):
        reopen(run.path, {}, trust=True)
    assert witness.exists()
    del sys.modules["planted"]


def test_link_in_place_of_a_checkpoint_is_refused(run: RunFolder, tmp_path: Path) -> None:
    draft = PendingCheckpoint(tmp_path / "elsewhere", 1)
    draft.seal()
    (run.checkpoints_dir / "global_step_1").symlink_to(draft.commit())
    with pytest.raises(RecordError, match="link"):
        newest_checkpoint(run.checkpoints_dir)


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "..", ".", "", "a\0b", "a\nb", "\ud800", "x" * 300])
def test_name_of_a_run_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        RunFolder.create(tmp_path / "runs", name)
    assert {entry.name for entry in tmp_path.rglob("*")} <= {"runs"}


@pytest.mark.parametrize("part", ["../out", "/out", "..\\out", "", "a/b", "a\0b"])
def test_name_of_a_part_of_a_step_leads_nowhere_else(part: str, run: RunFolder) -> None:
    with pytest.raises(RecordError, match="is not a valid part name"):
        write_episodes(run, 1, [], part=part)
    assert not list(run.path.parent.rglob("*out*"))


def test_name_of_an_episode_is_only_ever_data(run: RunFolder) -> None:
    before = {*run.path.parent.rglob("*")}
    episode = Trajectory(actions=["a"], rewards=[0.0], outcome=Outcome.COMPLETED, episode_id="../../out\0<script>")
    file = write_episodes(run, 1, [episode])
    assert {*run.path.parent.rglob("*")} - before == {file}
    assert read_episodes(run)[0].episode_id == episode.episode_id


# ---- settings


BOMB = "environment:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
SETTINGS = {
    "a bomb of aliases": BOMB,
    "a bomb in a number's place": BOMB + "training: {batch_size: *a11}\n",
    "a list that contains itself": "environment: {a: &a [*a]}",
    "a section that contains itself": "verl: &a {x: *a}",
    "deep nesting": "environment: {a: " + "[" * 500,
    "an object": "environment: {a: !!python/object/apply:os.system ['touch witness']}",
    "a name": "environment: {a: !!python/name:os.system}",
    "a module": "environment: {a: !!python/module:os}",
    "a list as a key": "? [a]\n: 1",
    "more digits than a float holds": f"training: {{learning_rate: {'9' * 400}}}",
    "more digits than an int may have": f"training: {{batch_size: {'9' * 5000}}}",
    "a long hexadecimal number": f"training: {{adv_estimator: 0x{'f' * 50_000}}}",
    "infinity": "training: {learning_rate: 1e999}",
    "not a number": "training: {batch_size: .nan}",
    "a class": "training: {__class__: 1}",
    "an attribute of the environment": "environment: {__init__: 1}",
    "a method of the environment": "environment: {as_dict: 1}",
    "bytes that are no text": b"training: {batch_size: \xff}",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_hostile_config_file_is_an_error_in_words(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SETTINGS[name]
    Path("config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load("config.yaml")
    assert len(str(caught.value)) < 1000
    assert not Path("witness").exists()


@pytest.mark.parametrize("value", ["[" * 500, "!!python/name:os.system", "&a [*a]", "{" * 100, "9" * 5000])
def test_hostile_override_is_text_or_an_error(value: str) -> None:
    try:
        config = apply_overrides(ConfigStore(), [f"environment.x={value}"])
    except ConfigError:
        return
    assert config.environment.x == value


def test_hostile_numbers_from_python_are_errors_too() -> None:
    with pytest.raises(ConfigError, match="too large a number"):
        from_dict({"training": {"learning_rate": 10**400}})
