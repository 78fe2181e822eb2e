"""A run that is killed in the middle of a save goes on from the command line, and its model can be taken out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.marked_processes import processes_with
from tests.e2e.same_runs import differences
from turnsmith.records.checkpoints import best_checkpoint, newest_checkpoint, open_checkpoint, read_state, saved_steps
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS = 8
TURNSMITH = [sys.executable, "-m", "turnsmith"]


def _kill_in_a_save(run: Path, mark: str, process: subprocess.Popen[bytes]) -> None:
    """SIGKILL every process of the run while it writes its third checkpoint or a later one."""
    folder = run / "checkpoints"

    def wait_for(what: Callable[[], object]) -> None:
        until = time.monotonic() + 240
        while not what():
            assert process.poll() is None, "the run ended too soon"
            assert time.monotonic() < until, "nothing happened for 240 s"
            time.sleep(0.002)

    wait_for((run / "metrics.jsonl").exists)
    everything = processes_with(mark)  # now, because looking takes longer than a save
    wait_for(lambda: len(saved_steps(folder)) >= 2 and list(folder.glob(".writing-*/*/actor")))
    for one in everything:
        one.kill()
    assert process.wait(timeout=10) == -9
    psutil.wait_procs(everything, timeout=20)


def _command(where: Path, name: str) -> list[str]:
    settings = f"checkpoint.output_dir={where} checkpoint.run_name={name} training.num_epochs={STEPS} "
    settings += "training.steps_per_epoch=1 training.batch_size=8 training.group_size=4 inference.max_tokens=4 "
    settings += "training.learning_rate=1e-2 training.use_kl_in_reward=true "
    settings += "evaluation.every=2 evaluation.episodes=6"
    environment = f"{Path(__file__).parent / 'three_letters.py'}:ThreeLetters"
    return [*TURNSMITH, "train", environment, "--model", "tiny", *settings.split()]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was killed while saving and then resumed to its end."""
    where, mark = tmp_path_factory.mktemp("runs"), uuid.uuid4().hex
    process = subprocess.Popen(
        _command(where, "killed"),
        env=os.environ | {"TURNSMITH_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _kill_in_a_save(where / "killed", mark, process)
    finally:
        for left in processes_with(mark):
            left.kill()
    assert len(RunFolder.open(where / "killed").read_metrics()) < STEPS
    done = subprocess.run([*TURNSMITH, "resume", str(where / "killed")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Resuming " in done.stdout
    return RunFolder.open(where / "killed")


def test_every_step_stands_in_the_folder_once(resumed: RunFolder) -> None:
    assert [record["step"] for record in resumed.read_metrics()] == list(range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        assert len(read_episodes(resumed, step)) == 8
    assert len(read_episodes(resumed)) == 8 * STEPS
    assert [record["step"] for record in resumed.read_evaluations()] == list(range(0, STEPS + 1, 2))


def test_it_equals_a_run_that_was_never_killed_to_the_last_bit(resumed: RunFolder) -> None:
    where = resumed.path.parent
    subprocess.run(_command(where, "whole"), check=True, stdout=subprocess.DEVNULL, timeout=300)
    whole = RunFolder.open(where / "whole")
    assert differences(resumed, whole) == []
    assert best_checkpoint(resumed.checkpoints_dir) == best_checkpoint(whole.checkpoints_dir)


def test_the_last_two_checkpoints_and_the_best_are_whole(resumed: RunFolder) -> None:
    folder, best = resumed.checkpoints_dir, best_checkpoint(resumed.checkpoints_dir)
    assert best is not None
    assert set(saved_steps(folder)) == {STEPS, STEPS - 1, best.step}
    assert open_checkpoint(folder / f"global_step_{best.step}").signed
    newest = newest_checkpoint(folder)
    assert (newest.step, newest.signed) == (STEPS, True)
    assert read_state(newest.path)["step"] == STEPS
    assert not list(folder.glob(".*"))


def test_the_exported_model_is_the_trained_one(resumed: RunFolder) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    subprocess.run([*TURNSMITH, "export", str(resumed.path)], check=True, capture_output=True)
    folder = resumed.path / "exports" / f"step-{STEPS}"
    actor = newest_checkpoint(resumed.checkpoints_dir).path / "actor"
    trained = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False)
    for place in (folder, actor / "huggingface"):
        model = AutoModelForCausalLM.from_pretrained(place)
        assert model.dtype == torch.float32
        assert all(torch.equal(weight, trained[name].to_local()) for name, weight in model.state_dict().items())
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert not [file for file in folder.rglob("*") if file.suffix in (".pt", ".bin", ".pkl", ".py")]
