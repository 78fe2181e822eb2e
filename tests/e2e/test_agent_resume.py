"""A run that trains an agent is killed in a step and resumed: it equals an undisturbed one to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.marked_processes import processes_with
from tests.e2e.same_runs import differences
from turnsmith.records.checkpoints import newest_checkpoint
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
EPOCHS, STEPS, EPISODES = 3, 6, 4
TURNSMITH = [sys.executable, "-m", "turnsmith"]


def _train(where: Path, name: str) -> list[str]:
    settings = f"checkpoint.output_dir={where} checkpoint.run_name={name} training.num_epochs={EPOCHS} "
    settings += f"training.steps_per_epoch={STEPS // EPOCHS} training.batch_size={EPISODES} training.group_size=2 "
    settings += "training.learning_rate=1e-2 training.credit=turn inference.max_tokens=6"
    agent = f"{Path(__file__).parent / 'resumed_agent.py'}:talk"
    return [*TURNSMITH, "train", agent, "--model", "tiny", *settings.split()]


def _wait_for(what: Callable[[], object], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"nothing happened for {seconds} s"
        time.sleep(0.02)


def _phase(run: RunFolder) -> object:
    return [event["content"] for event in run.read_events() if event["kind"] == "phase"][-1]


def _kill_while_agents_talk(command: list[str], folder: Path) -> None:
    """SIGKILL the user's process in the fourth step, of which the checkpoint knows two; no process is left."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        command,
        env=os.environ | {"TURNSMITH_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for((folder / "run.json").exists)
        run = RunFolder.open(folder)
        _wait_for(lambda: len(run.read_metrics()) == 3 and _phase(run) == "generate")
        process.kill()
        assert process.wait(timeout=10) == -9
        _wait_for(lambda: not processes_with(mark), 60)
    finally:
        for left in processes_with(mark):
            left.kill()
    assert (len(run.read_metrics()), newest_checkpoint(run.checkpoints_dir).step) == (3, 2)


def test_a_killed_and_resumed_run_equals_one_that_was_never_killed(tmp_path: Path) -> None:
    _kill_while_agents_talk(_train(tmp_path, "killed"), tmp_path / "killed")
    done = subprocess.run([*TURNSMITH, "resume", str(tmp_path / "killed")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    subprocess.run(_train(tmp_path, "whole"), check=True, stdout=subprocess.DEVNULL)
    resumed, whole = RunFolder.open(tmp_path / "killed"), RunFolder.open(tmp_path / "whole")
    assert [record["step"] for record in resumed.read_metrics()] == list(range(1, STEPS + 1))
    episodes = read_episodes(resumed)
    assert len(episodes) == EPISODES * STEPS
    for episode in episodes:
        continuations = [info["continuation"] for info in episode.infos]
        assert continuations == ["opened", "bridged", "bridged", "opened"]
        assert len(episode.branches) == 1
    # A run in which nothing is learned would be equal too.
    assert all(record["grad_norm"] > 0 for record in resumed.read_metrics())
    assert differences(resumed, whole) == []
