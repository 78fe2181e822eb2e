"""`Session`: the processes of a run, as the user's process sees them.

Starts them, waits for calls to the task runner while it shows events and notices signals, and stops a run that makes no
progress: `Watchdog` reports which part hangs, and saves the stacks of all processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import Preempted, RecordError, TrainingFailure, TurnsmithError
from turnsmith.inference.model_check import ModelCheck
from turnsmith.records import stacks
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import LAST_SAVE, EventKind
from turnsmith.records.stacks import collect_stacks
from turnsmith.trainer.config.layout import resolve_device
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.display import ProgressView
from turnsmith.trainer.driver.cluster import Cluster
from turnsmith.trainer.driver.ending import Interrupt, resume_advice
from turnsmith.trainer.driver.gpu_preflight import check_gpus

STACKS = "stacks"
"""The folder of a run in which its processes register for a stack dump, and the name of the file with the dumps."""
_RECEIVER = "rollout_standalone_"
"""How the names of verl's processes begin that receive weights beside servers of `separate_async`."""
_LOOK_SECONDS = 2.0
_LOST_SECONDS = 10.0
_PULSE_SECONDS = 10.0
"""How long the task runner may take to answer when there has been no progress: on a busy machine it answers late."""
_EVENT_SECONDS = 0.25
_ANSWER_SECONDS = 1.0
_TRACKER_SECONDS = 40.0  # the task runner itself stops waiting sooner, and says which tracker it was


class Session:
    """The processes of a run: Ray, the task runner in it, and what is started beside it. `close` ends them all.

    Args:
        config: The run's settings.
        folder: Its folder.
        horizon: The step with which the learning rate's schedule ends.
    """

    def __init__(self, config: ConfigStore, folder: RunFolder, horizon: int) -> None:
        self.folder, self.horizon = folder, horizon
        self._config = config
        self.cluster = Cluster(config, resolve_device(config), {stacks.VARIABLE: str(folder.path / STACKS)})
        self.runner: Any = None
        """The task runner's actor, once it is started."""
        self.watchdog: Any = None
        self._servers: list[Any] = []  # an actor ends with its last handle

    def start(self, model_path: str, view: ProgressView, steps: int | None = None) -> Any:
        """Start Ray, the task runner, which is returned, and the servers that take long to start.

        `steps` are those of a new run, whose checkpoints must fit on the disk.
        """
        from turnsmith.trainer.verl.task_runner import TaskRunner
        from turnsmith.trainer.verl.transformers_server import start_servers_early

        view.phase("starting Ray")
        # The check runs while Ray starts, and ends before anything loads the model.
        with ModelCheck.of(self._config, model_path, view.note):
            self.cluster.start(view.phase)
        if not self.cluster.is_local:
            check_gpus(self._config, model_path, view.note, steps, joined=True)
        view.phase("importing torch and verl")
        self.runner = self.cluster.actor(TaskRunner, threads=6)
        self.watchdog = Watchdog(self._config.failures.stall_seconds, self.runner, self.cluster, self.folder)
        self._servers = start_servers_early(self._config, self.cluster, model_path)
        return self.runner

    def wait(self, call: Any, show: Callable[[EventKind, Any], None], grace: float | None = None) -> Any:
        """Wait for a call to the task runner; see `wait_for_call`."""
        return wait_for_call(call, self.runner, self.watchdog, show, grace)

    def close(self) -> None:
        """Let trackers write what they still buffer, and end every process."""
        import ray
        from ray.exceptions import RayError

        if self.runner is not None and self._config.logging.trackers:
            with suppress(RayError):  # the task runner may be what failed
                ray.get(self.runner.finish_trackers.remote(), timeout=_TRACKER_SECONDS)
        self.cluster.close()


def wait_for_call(
    reference: Any, runner: Any, watchdog: Watchdog, show: Callable[[EventKind, Any], None], grace: float | None = None
) -> Any:
    """Wait for a call to the task runner and return its result; signals and the watchdog work even if it hangs.

    Args:
        reference: The call.
        runner: The task runner's actor.
        watchdog: Stops a run that makes no progress.
        show: Called with the kind and the content of each event.
        grace: Seconds to wait for a run that is preempted; None: it is not.

    Raises:
        TimeoutError: The call took longer than `grace`.
    """
    import ray
    from ray.exceptions import RayError

    deadline = None if grace is None else time.monotonic() + grace

    def report_problems() -> None:
        interrupt.check()
        for sentence in watchdog.check_progress():
            show(EventKind.WARNING, sentence)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError

    watchdog.move()
    with Interrupt(preempted=grace is not None) as interrupt:
        try:
            while True:
                done, _ = ray.wait([reference], timeout=0)
                events = runner.next_events.remote(0.0 if done else _EVENT_SECONDS)
                while not ray.wait([events], timeout=_ANSWER_SECONDS)[0]:
                    report_problems()
                told: Any = ray.get(events)
                for kind, content in told:
                    watchdog.move(content if kind == EventKind.PHASE else None)
                    show(kind, content)
                if done:
                    return ray.get(reference)
                report_problems()
        except RayError:
            interrupt.check()  # a signal to all processes of the job may have ended those of Ray as well
            raise


def train_until(
    step: int,
    epochs: Epochs,
    runner: Any,
    watch: Callable[..., Any],
    grace: float,
    note: Callable[[str], None],
) -> bool:
    """Train up to and including a step; when preempted, have a checkpoint saved first, which may take `grace` seconds.

    Args:
        step: The step.
        epochs: Those of the steps until there.
        runner: The task runner's actor.
        watch: `wait_for_call`, with a call, and the grace period if there is one.
        grace: The grace period.
        note: Called with a sentence about what happens.

    Returns:
        Whether that step was reached; not if `stop_soon` was called meanwhile.

    Raises:
        Preempted: After that; its text says whether it worked.
    """
    training = runner.train_until.remote(step, epochs)
    try:
        return bool(watch(training))
    except Preempted as preempted:
        reason = str(preempted)
    note(f"{reason} Saving a checkpoint, for up to {grace:g} s.")
    runner.stop_soon.remote()
    try:
        if watch(training, grace):
            return True  # that was the last step
    except TimeoutError:
        reason += f" The last step could not be saved in {grace:g} s (checkpoint.grace_seconds)."
    except TurnsmithError as error:
        reason += f" The last step could not be saved: {error}"
    raise Preempted(reason)


class Watchdog:
    """Watches the task runner from the user's process; any progress resets its clock.

    Args:
        seconds: How long there may be no progress; 0: for ever.
        runner: The task runner's actor.
        cluster: The `Cluster` that it runs in.
        folder: The run's folder.
    """

    def __init__(self, seconds: float, runner: Any, cluster: Any, folder: RunFolder) -> None:
        self.seconds = seconds
        self._runner = runner
        self._cluster = cluster
        self._folder = folder
        self._moved = time.monotonic()
        self._looked = 0.0
        self._asked: Any = None
        self._pulse: tuple[int, str] | None = None
        self._actors: set[tuple[str, str]] = set()
        self._lost: set[tuple[str, str]] = set()
        """Actors that are gone. Most calls to such an actor fail at once, but those of TransferQueue hang."""
        self._had_server = self._moved
        """When a rollout server was last seen, or none was missed yet."""
        self.phase = "starting"
        """The current phase of the run."""

    def move(self, phase: str | None = None) -> None:
        """Note progress, and the phase if it changed."""
        self._moved = time.monotonic()
        self.phase = phase or self.phase

    def check_progress(self) -> list[str]:
        """Check for progress; return sentences about lost processes that the run does not need.

        Raises:
            TrainingFailure: There was no progress for too long; the message names what hangs.
        """
        self._read_pulse(0)
        now, lost_servers = time.monotonic(), set[tuple[str, str]]()
        if now - self._looked > _LOOK_SECONDS:
            ray_part = self._cluster.lost()
            if ray_part:  # before any call to Ray, which would wait for the lost process
                raise TrainingFailure(
                    f"A process that every other one needs was lost: {ray_part}.{resume_advice(self._folder)}"
                )
            self._looked, actors = now, _named_actors(self._cluster.queue_namespace)
            gone = self._actors - actors
            self._lost = _missed(gone, actors)
            lost_servers = gone - self._lost
            self._actors = (self._actors | actors) - lost_servers  # each is reported once
            if not any(map(_is_server, self._lost)):
                self._had_server = now
            self._asked = self._asked or self._runner.pulse.remote()
        waited = now - self._moved
        # Not while a last checkpoint is being saved.
        if self._lost and waited > _LOST_SECONDS and self.phase != LAST_SAVE:
            raise self._stop(waited, f"the process {min(self._lost)[1]} was lost")
        # Whatever else goes on: episodes would only be repeated and fail.
        if now - self._had_server > _LOST_SECONDS and self.phase != LAST_SAVE:
            raise TrainingFailure(
                f"Every rollout server was lost: killed, or out of memory.{resume_advice(self._folder)}"
            )
        if self.seconds and waited > self.seconds:
            self._read_pulse(_PULSE_SECONDS)
            if self._moved < now:
                raise self._stop(waited, "")
        return [self._warn(actor[1]) for actor in sorted(lost_servers) if _is_server(actor)]

    def _read_pulse(self, timeout: float) -> None:
        """Take the task runner's answer, if it comes in time."""
        import ray

        if self._asked is None or not ray.wait([self._asked], timeout=timeout)[0]:
            return
        pulse: Any = ray.get(self._asked)
        self._asked = None
        if self._pulse is None or pulse[0] != self._pulse[0]:
            self.move()
        self._pulse = pulse

    def _warn(self, server: str) -> str:
        left = sum(map(_is_server, self._actors))
        sentence = (
            f"The rollout server {server} was lost: killed, or out of memory. The run continues more slowly without it "
            f"({left} left); stop it and resume it to have all of them again."
        )
        with suppress(OSError, RecordError):  # a full disk, or another writer; the run itself notices that
            self._folder.append_event(EventKind.WARNING, content=sentence)
        return sentence

    def _stop(self, waited: float, lost: str) -> TrainingFailure:
        target = self._folder.path / f"{STACKS}.txt"
        parts = collect_stacks(self._folder.path / STACKS, target)
        state = self._pulse[1] if self._pulse and self._asked is None else "the task runner does not answer"
        advice = resume_advice(self._folder) if lost else " If it is just slow, raise failures.stall_seconds."
        return TrainingFailure(
            f"The run has made no progress for {waited:.0f} s in phase {self.phase!r}: {lost or state}. The stacks of "
            f"{len(parts)} processes are in {target}.{advice}"
        )


def _missed(lost: set[tuple[str, str]], alive: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The lost actors without which the run cannot continue: not a rollout server while another one is alive, and not
    the process beside it that receives its weights.
    """
    if any(_is_server(actor) for actor in alive):
        return {actor for actor in lost if not _is_server(actor) and not actor[1].startswith(_RECEIVER)}
    return lost


def _is_server(actor: tuple[str, str]) -> bool:
    return "server_" in actor[1]


def _named_actors(queue_namespace: str) -> set[tuple[str, str]]:
    """The named actors of this run; Ray lists one that is being restarted, but none that is gone."""
    import ray

    mine = {ray.get_runtime_context().namespace, queue_namespace}
    found: Any = ray.util.list_named_actors(all_namespaces=True)
    return {(one["namespace"], one["name"]) for one in found if one["namespace"] in mine}
