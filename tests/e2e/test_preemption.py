"""A run that schedulers preempt at random moments saves its last step each time, and ends like an undisturbed one.

`TURNSMITH_PREEMPTIONS` is their number, `TURNSMITH_PREEMPTION_SEED` chooses the moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from tests.e2e.marked_processes import processes_with
from tests.e2e.same_runs import differences
from turnsmith.records.checkpoints import newest_checkpoint
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import RunState, state_of

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
COUNT = int(os.environ.get("TURNSMITH_PREEMPTIONS", "20"))
SEED = int(os.environ.get("TURNSMITH_PREEMPTION_SEED", "1"))
STEPS = 4 * COUNT
TURNSMITH = [sys.executable, "-m", "turnsmith"]


def _train(where: Path, name: str) -> list[str]:
    # One epoch: no checkpoint is due before the end, so that each is one of a preemption.
    settings = f"checkpoint.output_dir={where} checkpoint.run_name={name} training.num_epochs=1 "
    settings += f"training.steps_per_epoch={STEPS} training.batch_size=4 training.group_size=2 inference.max_tokens=4 "
    settings += "training.learning_rate=1e-2 evaluation.every=3 evaluation.episodes=2 checkpoint.save_model=false"
    environment = f"{Path(__file__).parent / 'three_letters.py'}:ThreeLetters"
    return [*TURNSMITH, "train", environment, "--model", "tiny", *settings.split()]


def _steps(folder: Path) -> int:
    return len(RunFolder.open(folder).read_metrics()) if (folder / "run.json").exists() else 0


class Preemption:
    """One life of the run, from its start to a signal at some moment after its first step."""

    def __init__(self, command: list[str], folder: Path, wait: float, number: signal.Signals, *, to_all: bool) -> None:
        mark, before = uuid.uuid4().hex, _steps(folder)
        process = subprocess.Popen(
            command,
            env=os.environ | {"TURNSMITH_TEST_MARK": mark},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + 600
            while _steps(folder) <= before:
                assert process.poll() is None, f"it ended too soon: {process.communicate()[1]}"
                assert time.monotonic() < until, "no step within 600 s"
                time.sleep(0.02)
            time.sleep(wait)
            (os.killpg if to_all else os.kill)(process.pid, number)
            began = time.monotonic()
            _, self.told = process.communicate(timeout=100)
            self.status, self.seconds = process.returncode, time.monotonic() - began
            while processes_with(mark) and time.monotonic() - began < 100:
                time.sleep(0.1)
            self.left = [one.cmdline() for one in processes_with(mark)]
        finally:
            for one in processes_with(mark):
                one.kill()
        run = RunFolder.open(folder)
        events = run.read_events()
        self.state, self.last_step = state_of(events), run.read_metrics()[-1]["step"]
        self.saved = newest_checkpoint(run.checkpoints_dir).step
        phases = [str(event["content"]) for event in events if event["kind"] == "phase"]
        self.phase = next(phase for phase in reversed(phases) if phase not in ("saving the last state", "ready"))


def test_preempted_at_random_moments_it_saves_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    subprocess.run(_train(tmp_path, "whole"), check=True, stdout=subprocess.DEVNULL, timeout=1200)
    whole = RunFolder.open(tmp_path / "whole")
    step_seconds = median(record["time/step"] for record in whole.read_metrics())
    moments, folder = random.Random(SEED), tmp_path / "preempted"
    lives: list[Preemption] = []
    for life in range(COUNT):
        command = [*TURNSMITH, "resume", str(folder)] if life else _train(tmp_path, "preempted")
        # Slurm's signal may go to every process of a job; that of Kubernetes and `docker stop` goes to the first.
        number, to_all = (signal.SIGUSR1, True) if life % 3 == 1 else (signal.SIGTERM, False)
        one = Preemption(command, folder, moments.uniform(0, 1.5 * step_seconds), number, to_all=to_all)
        assert (one.status, one.state, one.left) == (75, RunState.PREEMPTED, []), one.told
        assert f"Preempted by {number.name}." in one.told
        assert f"`turnsmith resume {folder}` continues from step {one.last_step}." in one.told
        assert one.saved == one.last_step, "every step that was recorded is in a checkpoint"
        lives.append(one)
        print(
            f"{number.name} in phase {one.phase} of step {one.last_step + 1}: ended in {one.seconds:.1f} s", flush=True
        )
    done = subprocess.run([*TURNSMITH, "resume", str(folder)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert differences(RunFolder.open(folder), whole) == []
    slowest = max(life.seconds for life in lives)
    print(f"{COUNT} preemptions in {dict(Counter(life.phase for life in lives))}, the slowest end {slowest:.1f} s")
