"""The commands of each recipe with the tiny model, for two steps; the one for a GPU is dry-run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes import NAMES, ROOT, training
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]
SMALL = (
    "model.model_name=tiny inference.max_tokens=8 inference.max_prompt_tokens=2048 inference.max_episode_tokens=2048 "
    "inference.tool_format=function_calling inference.thinking=null training.learning_rate=1e-3 "
    "training.batch_size=8 training.group_size=4 training.num_epochs=1 training.steps_per_epoch=2 "
    "training.filter_groups=false evaluation.episodes=4 checkpoint.run_name=run"
)


def turnsmith(*words: str) -> str:
    command = [sys.executable, "-m", "turnsmith", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpu"])
def test_it_trains(name: str, tmp_path: Path) -> None:
    turnsmith(*training(name), *SMALL.split(), f"checkpoint.output_dir={tmp_path}")
    run = RunFolder.open(tmp_path / "run")
    assert [record["step"] for record in run.read_metrics()] == [1, 2]
    assert all(record["rollout_diff/max"] < 1e-4 for record in run.read_metrics())


def test_the_settings_of_the_large_model_reach_verl() -> None:
    printed = turnsmith(*training("gpu"), "--dry-run", "model.device=cuda")
    assert "n_gpus_per_node: 8" in printed
    assert "Qwen/Qwen3-8B" in printed
