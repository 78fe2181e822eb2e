"""Kills runs with SIGKILL at random moments, resumes them, and compares them bit by bit with a run never killed.

Every fourth moment is drawn evenly from the time that a start takes. The others are some time after one of the steps
that are still to be made, so that kills hit episodes, optimizer steps, evaluations, saves and the end. Every process of
the run is killed at that moment, as in a power cut, and `turnsmith runs verify` must find nothing in what is left. The
run is resumed with `turnsmith resume`, and that may be killed in its turn; a run that comes to its end is compared with
the whole one: metrics, evaluations, episodes, weights, optimizer, data position. A run that was killed before its
folder was complete has nothing to resume and is started anew.

Run, in the project's folder: python -m benchmarks.kill_and_resume [--kills 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil
from benchmarks import results
from tests.e2e.conftest import verification_problem
from tests.e2e.marked_processes import processes_with
from tests.e2e.same_runs import differences
from tests.e2e.watched_run import has_told_since, steps_made

from turnsmith.records.checkpoints import saved_steps
from turnsmith.records.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[1]
STEPS = 6
TURNSMITH = [sys.executable, "-m", "turnsmith"]
SETTINGS = (
    f"training.num_epochs={STEPS} training.steps_per_epoch=1 training.batch_size=8 training.group_size=4 "
    "inference.max_tokens=4 training.learning_rate=1e-2 training.use_kl_in_reward=true "
    "evaluation.every=2 evaluation.episodes=6"
)


def train(where: Path, name: str) -> list[str]:
    """The command that starts a run."""
    environment = f"{ROOT / 'tests/e2e/three_letters.py'}:ThreeLetters"
    place = [f"checkpoint.output_dir={where}", f"checkpoint.run_name={name}"]
    return [*TURNSMITH, "train", environment, "--model", "tiny", *place, *SETTINGS.split()]


@dataclass(frozen=True)
class Moment:
    """When to kill."""

    seconds: float
    step: int | None
    """The step after which they count; without one they count from the first process."""

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s after its {'first process' if self.step is None else f'step {self.step}'}"


def run_until(command: list[str], folder: Path, moment: Moment | None) -> bool:
    """Run a command, and kill all its processes at a moment; whether it came to its end before."""
    mark, began = uuid.uuid4().hex, time.time()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command,
            env=os.environ | {"TURNSMITH_TEST_MARK": mark},
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
        try:
            while moment and process.poll() is None and not _has_come(moment, folder, began):
                time.sleep(0.05)
            code = process.wait(moment and moment.seconds)
        except subprocess.TimeoutExpired:
            _kill_all(mark)
            process.wait()
            return False
        if code:
            told.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{told.read().decode()[-3000:]}")
    return True


def _has_come(moment: Moment, folder: Path, began: float) -> bool:
    """Whether the seconds of a moment have begun to count in a life that began then."""
    if moment.step is None:
        return True
    return has_told_since(folder, "ready", began) and steps_made(folder) >= moment.step


def _kill_all(mark: str) -> None:
    # Looked for again until none is left: a process may have been starting another.
    while found := processes_with(mark):
        for one in found:
            one.kill()
        psutil.wait_procs(found, timeout=20)


class Moments:
    """Draws the moments to kill at, by the times that a whole run took."""

    def __init__(self, seed: int, start_seconds: float, step_seconds: float) -> None:
        self._random = random.Random(seed)
        self._is_in_start = itertools.cycle((False, False, False, True))
        self._start_seconds, self._step_seconds = start_seconds, step_seconds

    def draw(self, done: int) -> Moment:
        """A moment in a life that begins with so many steps done; it may come after the life's end."""
        if next(self._is_in_start):
            return Moment(self._random.uniform(0, self._start_seconds), None)
        return Moment(self._random.uniform(0, self._step_seconds), self._random.randint(done, STEPS))


def kill_until_it_ends(where: Path, name: str, moments: Moments) -> tuple[int, RunFolder]:
    """One run, killed and resumed until it ends before its next kill; how often it was killed, and its folder."""
    folder, kills, saved = where / name, 0, 0
    while True:
        begun = (folder / "config.yaml").exists() and (folder / "run.json").exists()
        moment = moments.draw(saved)
        if run_until([*TURNSMITH, "resume", str(folder)] if begun else train(where, name), folder, moment):
            return kills, RunFolder.open(folder)
        kills += 1
        if begun and (problem := verification_problem(folder)):
            raise SystemExit(problem)
        saved = max(saved_steps(folder / "checkpoints"), default=0)
        print(f"{name}: killed {moment}, {steps_made(folder)} made, checkpoint of step {saved}", flush=True)


def main() -> None:
    """Kill, resume, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    results.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        began = time.time()
        run_until(train(where, "whole"), where / "whole", None)
        whole, seconds = RunFolder.open(where / "whole"), time.time() - began
        start = next(event["time"] for event in whole.read_events() if event.get("content") == "ready") - began
        print(f"The whole run took {seconds:.1f} s, {start:.1f} s of it to start.", flush=True)
        moments = Moments(options.seed, start, (seconds - start) / STEPS)
        same: list[int] = []
        unlike: list[str] = []
        while sum(same) < options.kills and not unlike:
            kills, run = kill_until_it_ends(where, f"run-{len(same) + len(unlike)}", moments)
            if found := differences(run, whole) or list(filter(None, [verification_problem(run.path)])):
                unlike.append(f"{run.path.name}: {found}")
            else:
                same.append(kills)
            print(f"{run.path.name}: {kills} kills, {found or 'the same'}", flush=True)
        print(f"{sum(same)} kills in {len(same)} runs ended bit-identical; {len(unlike)} runs differ: {unlike}")
        figures = {"kills": sum(same), "runs": len(same), "different": len(unlike)}
        results.record("kill_and_resume", figures, is_wanted=options.json)
        raise SystemExit(bool(unlike))


if __name__ == "__main__":
    main()
