"""Kills the processes of real runs at random moments.

A run is one life of `turnsmith train` or `turnsmith resume`. In each, some processes are killed that a run survives;
then one that it does not survive. The next life resumes. In the end all steps must be those of a run that nothing was
done to.
"""

from __future__ import annotations

import itertools
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
from tests.e2e.watched_run import has_told_since, steps_made
from turnsmith.records.run_folder import RunFolder

TURNSMITH = [sys.executable, "-m", "turnsmith"]
SURVIVED = ("environment worker", "sandbox", "rollout server", "episode worker")
WHOLE = "user's process"
RAYS_OWN = ("raylet", "gcs_server")
"""While Ray starts, the loss of these ends the user's process in Ray's own code, in Ray's words."""
FORK_SERVER = "fork server"
"""Until it has forked all of them, its title is also that of processes which it has just forked."""
FATAL = (WHOLE, FORK_SERVER, "task runner", "trainer rank", "storage unit", "queue controller", *RAYS_OWN)
OF_VLLM = ("vLLM server", "vLLM engine core", "vLLM worker")
"""A run with one vLLM server does not survive these."""
_TITLES = {
    WHOLE: "-m turnsmith ",
    "rollout server": "TransformersServer",
    "episode worker": "ray::EpisodeWorker",
    "task runner": "ray::TaskRunner",
    "trainer rank": "ray::WorkerDict",
    "storage unit": "ray::SimpleStorageUnit",
    "queue controller": "ray::TransferQueueController",
    FORK_SERVER: "-m turnsmith.trainer.verl.fork_server",
    "raylet": "/raylet/raylet",
    "gcs_server": "/gcs/gcs_server",
    "environment worker": "turnsmith.env.isolation.worker",
    "sandbox": "bwrap",
    "vLLM server": "ray::VllmServer",
    "vLLM engine core": "VLLM::EngineCore",
    "vLLM worker": "VLLM::Worker",
}
_PATIENCE = 600.0
_BURST = 10


@dataclass
class Life:
    """One life of a run, and what was done to it."""

    plan: Sequence[str] = ()
    """What it survives, in the order in which it is killed."""
    end: str = ""
    """What it does not survive; the last life ends by itself."""
    is_young: bool = False
    """Whether `end` is killed at some moment of the life's start."""
    killed: Counter[str] = field(default_factory=Counter[str])
    code: int | None = None
    told: str = ""
    left_over: list[str] = field(default_factory=list[str])
    seconds_to_end: float = 0.0


def lives(draw: random.Random, survived: Sequence[str], fatal: Sequence[str], per_kind: int) -> list[Life]:
    """Lives in which each kind of process is killed so many times, in any order.

    About a third of them end in their start, but not the first: without a run folder there is nothing to resume.
    """
    ends = list(fatal) * per_kind
    draw.shuffle(ends)
    made = [Life(end=end, is_young=end not in (FORK_SERVER, *RAYS_OWN) and draw.random() < 1 / 3) for end in ends]
    made[0].is_young = False
    grown = [life for life in made if not life.is_young]
    plans: list[list[str]] = [[] for _ in grown]
    kills = list(survived) * per_kind
    draw.shuffle(kills)
    for plan, kind in zip(itertools.cycle(plans), kills, strict=False):
        plan.append(kind)
    for life, plan in zip(grown, plans, strict=True):
        life.plan = plan
    return made


class Chaos:
    """A run that is killed again and again.

    Args:
        folder: Where to put it.
        train: The environment and the settings of the run.
        draw: Decides which kill comes when.
    """

    def __init__(self, folder: Path, train: Sequence[str], draw: random.Random) -> None:
        self.random = draw
        self.folder = folder
        self.path = folder / "chaos"
        self.lives: list[Life] = []
        self.train = [*TURNSMITH, "train", *train, f"checkpoint.output_dir={folder}"]

    def live(self, life: Life, more_steps: int | None = None) -> None:
        """Live a life; without an end it ends by itself, `more_steps` after its beginning."""
        if self.path.exists():
            last = [] if more_steps is None else [f"training.num_epochs={steps_made(self.path) + more_steps}"]
            command = [*TURNSMITH, "resume", str(self.path), *last]
        else:
            command = [*self.train, "checkpoint.run_name=chaos", "training.num_epochs=1000"]
        self._run(life, [*command, f"ray.num_actors={int('episode worker' in life.plan)}"])
        self.lives.append(life)
        ended = f"ended with {life.code} after {life.seconds_to_end:.1f} s"
        print(f"life {len(self.lives)}: {dict(life.killed)} {ended}; {steps_made(self.path)} steps", flush=True)

    def undisturbed(self) -> RunFolder:
        """A run of as many steps to which nothing is done."""
        steps, life = steps_made(self.path), Life()
        self._run(life, [*self.train, "checkpoint.run_name=undisturbed", f"training.num_epochs={steps}"])
        assert life.code == 0, life.told[-2000:]
        return RunFolder.open(self.folder / "undisturbed")

    @property
    def killed(self) -> Counter[str]:
        """How many processes of each kind were killed."""
        return sum((life.killed for life in self.lives), Counter[str]())

    def _run(self, life: Life, command: list[str]) -> None:
        mark = uuid.uuid4().hex
        log = self.folder / f"life-{len(self.lives)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | {"TURNSMITH_TEST_MARK": mark},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._torment(life, process, mark)
                began = time.monotonic()
                life.code = process.wait(timeout=_PATIENCE)
                life.seconds_to_end = time.monotonic() - began
                # When the user's process is killed in its start, Ray's agents notice only at the end of theirs.
                life.left_over = _left_over(mark, 90 if life.end == WHOLE and life.is_young else 10)
            finally:
                for left in processes_with(mark):
                    left.kill()
        life.told = log.read_text()

    def _torment(self, life: Life, process: subprocess.Popen[bytes], mark: str) -> None:
        """Kill what it survives, some after each of the first steps, then `end`."""
        if life.plan or (life.end and not life.is_young):
            self._wait_for_a_step(process)
        for place, kind in enumerate(life.plan):
            if place and place % _BURST == 0:
                self._wait_for_a_step(process)
            time.sleep(self.random.uniform(0.02, 0.25))
            if process.poll() is not None:
                return
            self._kill(life, mark, kind)
        if life.end:
            _wait_for(mark, life.end)
            # It is there from the beginning of a start, the others come later.
            time.sleep(self.random.uniform(0.0, 15.0 if life.end == WHOLE and life.is_young else 3.0))
            self._kill(life, mark, life.end)

    def _wait_for_a_step(self, process: subprocess.Popen[bytes]) -> None:
        began = time.time()
        while not has_told_since(self.path, "sync_weights", began):
            assert process.poll() is None, "the run ended too soon"
            assert time.time() - began < _PATIENCE, f"no step within {_PATIENCE:.0f} s"
            time.sleep(0.05)

    def _kill(self, life: Life, mark: str, kind: str) -> None:
        while True:
            with suppress(psutil.NoSuchProcess):  # it may have been replaced just now
                self.random.choice(_wait_for(mark, kind)).send_signal(signal.SIGKILL)
                life.killed[kind] += 1
                return


def _of(mark: str, kind: str) -> list[psutil.Process]:
    """The processes of one kind."""
    marked = processes_with(mark)
    if kind == "sandbox":  # it has no variables of ours, but one of our processes starts it
        workers = [process for process in marked if _is(process, _TITLES["environment worker"])]
        marked = [one for process in workers for one in _children(process)]
    return [process for process in marked if _is(process, _TITLES[kind])]


def _is(process: psutil.Process, title: str) -> bool:
    with suppress(psutil.Error):
        return title in " ".join(process.cmdline())[:2000]
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children()
    return []


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
        with suppress(psutil.Error):
            yield " ".join(process.cmdline())
