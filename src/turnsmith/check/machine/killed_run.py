"""A run in processes of its own: trained, killed with SIGKILL in the middle of a step, resumed, and read afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.errors import TurnsmithError
from turnsmith.records.checkpoints import saved_steps
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import warnings_in
from turnsmith.records.yaml_text import dump_yaml
from turnsmith.trajectory import Outcome
from turnsmith.verify.run import verify_run

STEPS = 4
"""The run is killed in the fourth step. With a checkpoint after the second step, the third is made twice."""
COMMAND = (sys.executable, "-m", "turnsmith")
_POLL = 0.1
_MIDDLE = 0.4
_ENDING = 60.0
"""Seconds that the other processes of a killed run may take to end."""
_RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of Ray that hold no memory or GPUs of the run. They report the loss of their node to a server that is lost,
too, and give up after a minute (Ray 2.60)."""
_FAULTS = ("not_a_number", "rollout_mismatch", "failing_tools", "check_failed", "long_waits")
"""Warnings that a random model does not cause."""
NO_CHECKPOINTS = "checkpoint.save_interval=0: there is no checkpoint to continue from."
"""Why nothing is resumed."""


class RunStopped(TurnsmithError):
    """The run ended before it should, or took too long."""


class KilledRun:
    """One run: `train` and `resume` make it, the others say what its folder has afterwards.

    Args:
        config: Its settings.
        words: What to train in, as `turnsmith train` takes it.
        folder: Where to put it, its settings and its log.
        seconds: How long one of its processes may take.
        say: Called with a line of progress.
    """

    def __init__(
        self, config: ConfigStore, words: Sequence[str], folder: Path, seconds: float, say: Callable[[str], None]
    ) -> None:
        self.path = folder / "run"
        self.log = folder / "run.log"
        self.killed_after = 0
        """The number of steps that were made before the kill."""
        self._config, self._seconds, self._say = config, seconds, say
        config.checkpoint.output_dir, config.checkpoint.run_name = str(folder), self.path.name
        file = folder / "run.yaml"
        file.write_text(dump_yaml(to_dict(config)), encoding="utf-8")
        self._train = [*COMMAND, "train", *words, "--config", str(file)]
        self._shown = 0
        self._before: dict[int, list[Any]] = {}

    def train(self) -> Finding:
        """Train to the third step, and kill the run's process in the fourth."""
        began = time.monotonic()
        process = self._start(self._train)
        try:
            self._wait(process, began, lambda: len(self._metrics()) >= STEPS - 1)
            # The middle of the next step, when episodes are being played.
            time.sleep(_MIDDLE * min(record["time/step"] for record in self._metrics()))
        finally:
            left = kill_and_wait(process)
        made = self._metrics()
        saved = max(saved_steps(self.path / "checkpoints"), default=0)
        self._before = {record["step"]: self._episodes(record["step"]) for record in made if record["step"] > saved}
        self.killed_after = len(made)
        ended = f"{left} of its processes had to be killed too" if left else "its other processes ended by themselves"
        saw = f"{len(made)} steps; then killed with SIGKILL, and {ended}."
        fix = "Look into run.log for what they wait for: they hold memory and GPUs of the next run."
        return Finding("warning", saw, fix) if left else Finding("passed", saw)

    def resume(self) -> Finding:
        """Continue to the last step."""
        if not self._config.checkpoint.save_interval:
            return Finding("skipped", NO_CHECKPOINTS)
        began, last = time.monotonic(), max(STEPS, self.killed_after + 1)
        self._finish([*COMMAND, "resume", str(self.path), f"training.num_epochs={last}"], began)
        steps = [record["step"] for record in self._metrics()]
        if steps != list(range(1, last + 1)):
            return Finding("failed", f"The resumed run has the steps {steps}.", f"{self.log} has its messages.")
        return Finding("passed", f"Resumed after its checkpoint, to step {last}: each step once.")

    def compare(self) -> Finding:
        """Compare the step that was made twice: its episodes before and after the kill."""
        if not self._config.checkpoint.save_interval:
            return Finding("skipped", NO_CHECKPOINTS)
        if self._config.training.schedule != "sync" or self._config.inference.backend != "transformers":
            return Finding("skipped", "Only the schedule sync with the engine transformers repeats a step exactly.")
        differing = [step for step, before in self._before.items() if self._episodes(step) != before]
        if differing:
            step = differing[0]
            pairs = list(zip(self._before[step], self._episodes(step), strict=False))
            name = next((one[0] for one, other in pairs if one != other), "their number")
            saw = f"Step {step} was made again after the kill, and its episodes are others, first {name}: the \
environment depends on more than its seed, its task and the actions."
            fix = "Keep nothing outside the environment's object, and draw what is random from the seed of `reset`."
            return Finding("warning", saw, fix)
        if not self._before:
            return Finding("skipped", "The kill came right after a checkpoint: no step was made again.")
        return Finding("passed", f"Step {next(iter(self._before))}, made again, has the same episodes.")

    def episodes(self) -> Finding:
        """How the episodes of training and evaluation ended."""
        run = RunFolder.open(self.path)
        ended: dict[str, int] = {}
        for record in [*run.read_metrics(), *run.read_evaluations()]:
            for name in Outcome:
                ended[name.value] = ended.get(name.value, 0) + int(record.get(f"episodes/{name.value}", 0))
        ended = {name: count for name, count in ended.items() if count}
        failures = {name: count for name, count in ended.items() if not Outcome(name).is_behaviour}
        told = f"{sum(ended.values())} episodes: {', '.join(f'{count} {name}' for name, count in ended.items())}."
        warnings = [one for one in warnings_in(run.read_events()) if one.name in ("failed_episodes", *_FAULTS)]
        if failures or warnings:
            first = f" {warnings[0].what}" if warnings else ""
            return Finding("failed", f"{told}{first}", warnings[0].advice if warnings else "Look at their errors.")
        return Finding("passed", told)

    def evaluation(self) -> Finding:
        """Whether all evaluations were made that were due."""
        if not self._config.evaluation.every:
            return Finding("skipped", "evaluation.every=0")
        records = RunFolder.open(self.path).read_evaluations()
        steps, bad = [one["step"] for one in records], [one["step"] for one in records if "reward/mean" not in one]
        last = STEPS if self._config.checkpoint.save_interval else STEPS - 2  # killed before it, and not resumed
        if not {0, last} <= set(steps) or bad:
            saw = f"Evaluations after the steps {steps}; without one episode that counts: {bad}."
            return Finding("failed", saw, f"{self.log} has the messages.")
        return Finding("passed", f"After the steps {', '.join(map(str, steps))}.")

    def checkpoint(self) -> Finding:
        """What a checkpoint holds and how long it takes."""
        if not self._config.checkpoint.save_interval:
            return Finding("skipped", NO_CHECKPOINTS)
        folder = self.path / "checkpoints"
        saved = sorted(saved_steps(folder))
        if not saved:
            return Finding("failed", "No checkpoint was written.", f"{self.log} has the messages.")
        size = sum(file.stat().st_size for file in (folder / f"global_step_{saved[-1]}").rglob("*") if file.is_file())
        took = [record["time/checkpoint"] for record in self._metrics() if "time/checkpoint" in record]
        slowest = f" in {max(took):.1f} s" if took else ""
        return Finding("passed", f"{size / 2**20:.0f} MiB{slowest}; kept: those of the steps {saved}.")

    def records(self) -> Finding:
        """Whether the records of the run agree."""
        found = verify_run(self.path)
        if found.violations:
            return Finding("failed", str(found.violations[0]), f"turnsmith runs verify {self.path}")
        return Finding("passed", f"{len(found.verdicts)} checks of `turnsmith runs verify`.")

    def long_batch(self, turn_tokens: int, vocabulary: int) -> Finding:
        """One more step with turns as long as the run allows, if memory and time allow it here."""
        steps, inference = self._metrics(), self._config.inference
        if not self._config.checkpoint.save_interval:
            return Finding("skipped", NO_CHECKPOINTS)
        longest = min(inference.max_episode_tokens, int(max(one["turns/mean"] for one in steps) + 1) * turn_tokens)
        tokens = longest * self._config.training.batch_size
        rate = max(one["tokens/response"] * self._config.training.batch_size / one["time/step"] for one in steps)
        gib = longest * vocabulary * 4 * 6 * self._config.ray.gpus_per_node / 2**30
        free = psutil.virtual_memory().available / 2**30
        if tokens / rate > self._seconds or gib > 0.6 * free:
            saw = f"Up to {longest} tokens an episode would take {tokens / rate:.0f} s and {gib:.1f} GiB here."
            return Finding("skipped", saw)
        lengths = [f"inference.max_tokens={turn_tokens}"]
        last, began = steps[-1]["step"] + 1, time.monotonic()
        self._finish([*COMMAND, "resume", str(self.path), f"training.num_epochs={last}", *lengths], began)
        made = self._metrics()[-1]
        longest = max(len(one.tokens) for one in read_episodes(self.path, step=last))
        return Finding("passed", f"A step with up to {longest} tokens an episode took {made['time/step']:.1f} s.")

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            log.write(f"== {' '.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _finish(self, command: Sequence[str], began: float) -> None:
        process = self._start(command)
        try:
            self._wait(process, began, lambda: process.poll() is not None)
        finally:
            if process.poll() is None:
                kill_and_wait(process)
        if process.returncode:
            raise RunStopped(self._why(f"`{' '.join(command[2:4])}` ended with exit code {process.returncode}"))

    def _wait(self, process: subprocess.Popen[bytes], began: float, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if process.poll() is not None and not is_done():
                raise RunStopped(self._why(f"The run ended with exit code {process.returncode}"))
            if time.monotonic() - began > self._seconds:
                raise RunStopped(self._why(f"The run was stopped after {self._seconds:.0f} s (--minutes)"))
            for record in self._metrics()[self._shown :]:
                self._shown = record["step"]
                self._say(
                    f"step {record['step']}: {record['time/step']:.1f} s, {time.monotonic() - began:.0f} s in all"
                )
            time.sleep(_POLL)

    def _why(self, what: str) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line.removeprefix("turnsmith: ") for line in lines if line.startswith("turnsmith: ")]
        return f"{what}: {(told or lines)[-1]} ({self.log} has all messages.)"

    def _metrics(self) -> list[dict[str, Any]]:
        return RunFolder.open(self.path).read_metrics() if RunFolder.is_at(self.path) else []

    def _episodes(self, step: int) -> list[Any]:
        played = read_episodes(self.path, step=step)
        return sorted((one.episode_id, one.states, one.actions, one.rewards) for one in played)


def kill_and_wait(process: subprocess.Popen[bytes]) -> int:
    """Kill a run's main process; return how many others, without Ray's agents, did not end within a minute."""
    try:
        others = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        others = []
    process.kill()
    process.wait()
    until = time.monotonic() + _ENDING
    while (left := [one for one in others if _is_alive(one, but=_RAY_AGENTS)]) and time.monotonic() < until:
        time.sleep(_POLL)
    for one in filter(_is_alive, others):
        one.kill()
    return len(left)


def _is_alive(process: psutil.Process, but: Sequence[str] = ()) -> bool:
    """Whether a process has not ended, and has none of these names.

    In some containers a process that has ended stays in the list as a zombie.
    """
    try:
        has_ended = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        return not has_ended and not set(process.cmdline()[:1]) & set(but)
    except psutil.NoSuchProcess:
        return False
