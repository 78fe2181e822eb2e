"""The extensions of docs/extending.md in a real run: the recipe names them, and a resumed run finds them again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnsmith import RunFolder, read_episodes
from turnsmith.records.advantages import read_advantages

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
LETTERS = Path(__file__).parents[2] / "examples" / "letters.py"
OWN = {
    "training.adv_estimator": ["estimators.py:median_baseline"],
    "inference.tool_format": ["calls.py:AtSign"],
    "logging.warnings": ["warnings_of_mine.py:few_turns"],
    "logging.trackers": ["trackers.py:CsvTracker"],
}


def turnsmith(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "turnsmith", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step, and one more after `turnsmith resume`."""
    folder = tmp_path_factory.mktemp("extensions")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (folder / name).write_text(text)
    (folder / "letters.py").write_text(LETTERS.read_text())
    settings = "training.batch_size=4 training.group_size=4 training.steps_per_epoch=1 inference.max_tokens=4"
    own = [f"{key}={values[0] if 'logging' not in key else '[' + values[0] + ']'}" for key, values in OWN.items()]
    run = "checkpoint.output_dir=. checkpoint.run_name=run training.num_epochs=1 checkpoint.save_interval=1"
    turnsmith(folder, "train", "letters.py:Letters", "--model", "tiny", *settings.split(), *own, *run.split())
    turnsmith(folder, "resume", "run", "training.num_epochs=2")
    return folder


def test_the_recipe_names_them(folder: Path) -> None:
    extensions = json.loads((folder / "run" / "resume.json").read_text())["extensions"]
    assert {key: [Path(name).name for name in names] for key, names in extensions.items()} == OWN


def test_both_steps_were_trained_with_the_estimator(folder: Path) -> None:
    for step in (1, 2):
        rewards = {one.episode_id: one.total_reward for one in read_episodes(folder / "run", step=step)}
        median = sorted(rewards.values())[(len(rewards) - 1) // 2]
        for episode, advantages in read_advantages(folder / "run", step).advantages.items():
            assert max(advantages, key=abs) == pytest.approx(rewards[episode] - median, abs=1e-5)


def test_the_tracker_was_called_before_and_after_the_resume(folder: Path) -> None:
    rows = (folder / "run" / "rewards.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["1", "2"]


def test_the_warning_is_told_once(folder: Path) -> None:
    events = RunFolder.open(folder / "run").read_events()
    warnings = [event["content"] for event in events if event["kind"] == "warning"]
    assert [one["name"] for one in warnings if isinstance(one, dict)].count("few_turns") == 1
