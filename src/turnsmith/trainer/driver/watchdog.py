"""Notices a run that makes no progress, reports which part hangs, and saves the stacks of its processes."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from turnsmith.errors import RecordError, TrainingFailure
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import LAST_SAVE
from turnsmith.records.stacks import collect_stacks
from turnsmith.trainer.driver.preflight import QUEUE_NAMESPACE
from turnsmith.trainer.driver.remote_errors import resume_advice

STACKS = "stacks"
"""The folder of a run in which its processes register for a stack dump, and the name of the file with the dumps."""
_RECEIVER = "rollout_standalone_"
"""How the names of verl's processes begin that receive weights beside servers of `separate_async`."""
_LOOK_SECONDS = 2.0
_LOST_SECONDS = 10.0
_ANSWER_SECONDS = 10.0
"""How long the task runner may take to answer when there has been no progress: on a busy machine it answers late."""


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

    def look(self) -> list[str]:
        """Check for progress; return sentences about what was lost, but can be done without.

        Raises:
            TrainingFailure: There was none for too long; names what hangs.
        """
        self._read_pulse(0)
        now, lost_servers = time.monotonic(), set[tuple[str, str]]()
        if now - self._looked > _LOOK_SECONDS:
            ray_part = self._cluster.lost()
            if ray_part:  # before any call to Ray, which would wait for the lost process
                raise TrainingFailure(
                    f"A process that every other one needs was lost: {ray_part}.{resume_advice(self._folder)}"
                )
            self._looked, actors = now, _named_actors()
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
            self._read_pulse(_ANSWER_SECONDS)
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
            self._folder.append_event("warning", content=sentence)
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


def _named_actors() -> set[tuple[str, str]]:
    """The named actors of this run; Ray lists one that is being restarted, but none that is gone."""
    import ray

    mine = {ray.get_runtime_context().namespace, QUEUE_NAMESPACE}
    found: Any = ray.util.list_named_actors(all_namespaces=True)
    return {(one["namespace"], one["name"]) for one in found if one["namespace"] in mine}
