"""Kills the processes of real runs at random moments. `python -m tests.e2e.chaos` makes more of it than CI can.

A run is one life of `turnsmith train` or `turnsmith resume`. In each, many environment workers and a few others that a
run survives are killed; then one that it does not survive. The next life resumes. In the end all steps must be those of
a run that nothing was done to.
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.e2e.marked_processes import processes_with
from tests.e2e.shaken_run import SETTINGS
from tests.e2e.watched_run import has_told_since, steps_made
from turnsmith.records.run_folder import RunFolder

ENVIRONMENT = "tests.e2e.shaky:Shaky"
TURNSMITH = [sys.executable, "-m", "turnsmith"]
SURVIVED = ("environment worker", "rollout server", "episode worker")
WHOLE = "user's process"
FATAL = (WHOLE, "task runner", "trainer rank", "storage unit", "queue controller", "raylet", "gcs_server")
RAYS_OWN = ("raylet", "gcs_server")
"""While Ray starts, the loss of these ends the user's process in Ray's own code, in Ray's words."""
_TITLES = {
    WHOLE: "-m turnsmith ",
    "rollout server": "ray::TransformersServer",
    "episode worker": "ray::EpisodeWorker",
    "task runner": "ray::TaskRunner",
    "trainer rank": "ray::WorkerDict",
    "storage unit": "ray::SimpleStorageUnit",
    "queue controller": "ray::TransferQueueController",
    "raylet": "/raylet/raylet",
    "gcs_server": "/gcs/gcs_server",
    "environment worker": "/env/isolation/",
}
_PATIENCE = 300.0
_BURST = 10


@dataclass
class Life:
    """One life of a run, and what was done to it."""

    killed: Counter[str] = field(default_factory=Counter[str])
    code: int | None = None
    told: str = ""
    left_over: list[str] = field(default_factory=list[str])
    seconds_to_end: float = 0.0


class Chaos:
    """A run that is killed again and again.

    Args:
        folder: Where to put it.
        seed: Decides which kill comes when.
        kills: How many kills in each life.
    """

    def __init__(self, folder: Path, seed: int, kills: int) -> None:
        self.random = random.Random(seed)
        self.kills = kills
        self.folder = folder
        self.path = folder / "chaos"
        self.lives: list[Life] = []
        self.young: list[Life] = []
        """Those that ended in their start."""
        (folder / "no-faults").write_text("")

    def live(self, end: str = "", more_steps: int | None = None, *, also: Sequence[str] = SURVIVED[1:]) -> Life:
        """One life that ends by killing `end`; the last one ends by itself, `more_steps` after its beginning.

        Besides environment workers one of each kind in `also` is killed, which takes seconds to start again.
        """
        self.lives.append(self._live(self._plan(also, end), end, more_steps, with_worker="episode worker" in also))
        return self.lives[-1]

    def die_young(self, end: str) -> Life:
        """One life that is ended at some moment of its start."""
        self.young.append(self._live([], end, None, with_worker=False))
        return self.young[-1]

    def _live(self, plan: list[str], end: str, more_steps: int | None, *, with_worker: bool) -> Life:
        life, mark = Life(), uuid.uuid4().hex
        log = self.folder / f"life-{len(self.lives)}-{len(self.young)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*self._command(more_steps), f"ray.num_actors={int(with_worker)}"],
                env=os.environ | {"TURNSMITH_TEST_MARK": mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._torment(life, process, mark, plan, end)
                began = time.monotonic()
                life.code = process.wait(timeout=_PATIENCE)
                life.seconds_to_end = time.monotonic() - began
                # When the user's process is killed in its start, Ray's agents notice only at the end of theirs.
                life.left_over = _left_over(mark, 90 if end == WHOLE and not plan else 10)
            finally:
                for left in processes_with(mark):
                    left.kill()
        life.told = log.read_text()
        return life

    def _command(self, more_steps: int | None) -> list[str]:
        if self.path.exists():
            last = [] if more_steps is None else [f"training.num_epochs={steps_made(self.path) + more_steps}"]
            return [*TURNSMITH, "resume", str(self.path), *last]
        own = f"environment.faults={self.folder / 'no-faults'} checkpoint.output_dir={self.folder} "
        own += "checkpoint.run_name=chaos training.num_epochs=1000"
        return [*TURNSMITH, "train", ENVIRONMENT, *SETTINGS.split(), *own.split()]

    def _torment(self, life: Life, process: subprocess.Popen[bytes], mark: str, plan: list[str], end: str) -> None:
        """Kill what it survives, some after each of the first steps, then `end`."""
        for place, kind in enumerate(plan):
            if place % _BURST == 0:
                self._wait_for_a_step(process)
            time.sleep(self.random.uniform(0.02, 0.25))
            if process.poll() is not None:
                return
            self._kill(life, mark, kind)
        if end:
            _wait_for(mark, end)
            # It is there from the beginning of a start, the others come later.
            time.sleep(self.random.uniform(0.0, 15.0 if end == WHOLE and not plan else 3.0))
            self._kill(life, mark, end)

    def _wait_for_a_step(self, process: subprocess.Popen[bytes]) -> None:
        began = time.time()
        while not has_told_since(self.path, "sync_weights", began):
            assert process.poll() is None, "the run ended too soon"
            assert time.time() - began < _PATIENCE, f"no step within {_PATIENCE:.0f} s"
            time.sleep(0.05)

    def _plan(self, also: Sequence[str], end: str) -> list[str]:
        plan = [*also, *["environment worker"] * (self.kills - len(also) - bool(end))]
        self.random.shuffle(plan)
        return plan

    def _kill(self, life: Life, mark: str, kind: str) -> None:
        while True:
            with suppress(psutil.NoSuchProcess):  # it may have been replaced just now
                self.random.choice(_wait_for(mark, kind)).send_signal(signal.SIGKILL)
                life.killed[kind] += 1
                return


def _of(mark: str, kind: str) -> list[psutil.Process]:
    """The processes of one kind."""
    found: list[psutil.Process] = []
    for process in processes_with(mark):
        try:
            if _TITLES[kind] in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _wait_for(mark: str, kind: str) -> list[psutil.Process]:
    """The processes of one kind, as soon as there are any."""
    until = time.monotonic() + _PATIENCE
    while not (found := _of(mark, kind)):
        assert time.monotonic() < until, f"there is no {kind}"
        time.sleep(0.05)
    return found


def _left_over(mark: str, seconds: float) -> list[str]:
    """What is still there so long after the run has ended."""
    until = time.monotonic() + seconds
    while (left := processes_with(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    return list(_titles(left))


def _titles(processes: list[psutil.Process]) -> Iterator[str]:
    for process in processes:
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue


def main() -> None:
    """Make runs until so many kills are recorded; print a table of them."""
    import tempfile

    kills, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(time.time())
    with tempfile.TemporaryDirectory() as folder:
        chaos, done = Chaos(Path(folder), seed, kills=15), Counter[str]()
        ends = list(FATAL)
        while done.total() < kills:
            if not ends:
                ends = list(FATAL)
            life = chaos.live(ends.pop(0))
            done += life.killed
            last_words = life.told.strip().splitlines()[-1][:300]
            ended = f"ended with {life.code} after {life.seconds_to_end:.1f} s, {len(life.left_over)} left over"
            print(f"life {len(chaos.lives)}: {dict(life.killed)}, {ended}: {last_words}", flush=True)
        last = chaos.live(more_steps=5)
        metrics, ledger = RunFolder.open(chaos.path).read_metrics(), RunFolder.open(chaos.path).read_ledger()
        print(f"last life: ended with {last.code}; all kills: {dict(done + last.killed)}")
        print(
            f"steps: {[step['step'] for step in metrics]}; {sum(step['trained'] for step in ledger)} episodes trained"
        )


if __name__ == "__main__":
    main()
