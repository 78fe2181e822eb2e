"""Several environments in one run: their shares, and a curriculum that is killed and resumed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.e2e.marked_processes import processes_with
from tests.e2e.same_runs import differences
from turnsmith.records.checkpoints import saved_steps
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
GAMES = Path(__file__).parent / "mixed_games.py"
LETTERS = Path(__file__).parent / "three_letters.py"
TURNSMITH = [sys.executable, "-m", "turnsmith"]
STEPS = 8


def _train(where: Path, name: str, *words: str, steps: int = STEPS) -> list[str]:
    settings = f"checkpoint.output_dir={where} checkpoint.run_name={name} training.num_epochs={steps} "
    settings += "training.steps_per_epoch=1 training.batch_size=16 training.group_size=4 inference.max_tokens=4 "
    settings += "training.learning_rate=1e-2 evaluation.every=4 evaluation.episodes=8"
    return [*TURNSMITH, "train", *words, "--model", "tiny", *settings.split()]


def _played(run: RunFolder) -> Counter[str]:
    return Counter(episode.environment for episode in read_episodes(run))


def test_three_to_one_is_three_to_one_in_every_step(tmp_path: Path) -> None:
    words = (f"{GAMES}:Toss=3", f"{LETTERS}:ThreeLetters=1")
    subprocess.run(_train(tmp_path, "run", *words, steps=3), check=True, stdout=subprocess.DEVNULL, timeout=300)
    run = RunFolder.open(tmp_path / "run")
    for record in run.read_metrics():
        assert (record["environment/Toss/episodes"], record["environment/ThreeLetters/episodes"]) == (12, 4)
        assert (record["environment/Toss/share"], record["environment/ThreeLetters/share"]) == (0.75, 0.25)
        assert 0 <= record["environment/ThreeLetters/reward"] <= 1
        rewards = [record["environment/Toss/reward"], record["environment/ThreeLetters/reward"]]
        assert record["reward/mean"] == pytest.approx(0.75 * rewards[0] + 0.25 * rewards[1])
    assert _played(run) == {"Toss": 36, "ThreeLetters": 12}
    evaluated = run.read_evaluations()[-1]
    assert evaluated["environment/Toss/episodes"] + evaluated["environment/ThreeLetters/episodes"] == 8
    seeds = {episode.seed for episode in read_episodes(run) if episode.environment == "ThreeLetters"}
    assert seeds == {0, 1, 2}, "each environment counts its own seeds"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a curriculum that was killed after its third checkpoint and then resumed to its end."""
    where, mark = tmp_path_factory.mktemp("runs"), uuid.uuid4().hex
    folder = where / "killed"
    process = subprocess.Popen(
        _curriculum(where, "killed"),
        env=os.environ | {"TURNSMITH_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 240
        while not (folder / "checkpoints").exists() or len(RunFolder.open(folder).read_metrics()) < 3:
            assert process.poll() is None, "the run ended too soon"
            assert time.monotonic() < until, "no third step within 240 s"
            time.sleep(0.05)
    finally:
        everything = processes_with(mark)
        for one in everything:
            one.kill()
        psutil.wait_procs(everything, timeout=20)
    assert saved_steps(folder / "checkpoints")
    assert len(RunFolder.open(folder).read_metrics()) < STEPS
    done = subprocess.run([*TURNSMITH, "resume", str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return RunFolder.open(folder)


def _curriculum(where: Path, name: str) -> list[str]:
    held_out = "evaluation.every=0"  # the mix has tasks, and the command line no held-out ones
    return [*_train(where, name, f"{GAMES}:CURRICULUM"), held_out]


def test_the_share_of_what_is_solved_falls(resumed: RunFolder) -> None:
    records = resumed.read_metrics()
    assert records[0]["environment/toss/episodes"] == records[0]["environment/easy/episodes"] == 8
    shares = [record["environment/easy/share"] for record in records]
    assert shares[0] < 0.5
    assert shares[-1] < shares[0] / 1.5
    assert records[-1]["environment/toss/episodes"] > 8
    assert {record["environment/easy/reward"] for record in records if "environment/easy/reward" in record} == {1.0}
    asked = {int(one.group_id): one.states[0] for one in read_episodes(resumed) if one.environment == "easy"}
    assert [asked[group] for group in sorted(asked)][:4] == ["What?", "Who?", "Why?", "What?"]


def test_killed_and_resumed_it_equals_a_run_that_was_not_to_the_last_bit(resumed: RunFolder) -> None:
    where = resumed.path.parent
    subprocess.run(_curriculum(where, "whole"), check=True, stdout=subprocess.DEVNULL, timeout=300)
    whole = RunFolder.open(where / "whole")
    assert differences(resumed, whole) == []
    assert _played(resumed) == _played(whole)
