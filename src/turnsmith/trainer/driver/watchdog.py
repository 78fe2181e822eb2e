"""Notices a run that stands still, says which part of it does, and leaves the stacks of its processes behind."""

from __future__ import annotations

import time
from typing import Any

from turnsmith.errors import TrainingFailure
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.stacks import collect_stacks
from turnsmith.trainer.driver.remote_errors import resume_advice

STACKS = "stacks"
"""The folder of a run in which its processes register, and the name of the file with what they answered."""
_LOOK_SECONDS = 2.0
_LOST_SECONDS = 10.0
SAVING = "saving the last state"
"""The phase in which a run that failed saves what there is."""
_QUEUE = "transfer_queue"
"""Where TransferQueue keeps its controller, whatever the run's own namespace is."""


class Watchdog:
    """Watches the task runner from the user's process; anything that moves puts it off.

    Args:
        seconds: How long nothing may move; 0: for ever.
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
        """Actors that are gone. Most calls to one fail at once, but those of TransferQueue wait for ever."""
        self.phase = "starting"
        """What the run was last said to do."""

    def move(self, phase: str | None = None) -> None:
        """Note that something happened, a new phase perhaps."""
        self._moved = time.monotonic()
        self.phase = phase or self.phase

    def look(self) -> None:
        """Ask whether something moved.

        Raises:
            TrainingFailure: Nothing has for too long; says what stands still.
        """
        import ray

        now = time.monotonic()
        if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
            pulse: Any = ray.get(self._asked)
            self._asked = None
            if self._pulse is None or pulse[0] != self._pulse[0]:
                self.move()
            self._pulse = pulse
        if now - self._looked > _LOOK_SECONDS:
            ray_part = self._cluster.lost()
            if ray_part:  # before Ray is asked anything: it would wait for the lost process
                raise TrainingFailure(f"Ray's own process {ray_part} was lost.{resume_advice(self._folder)}")
            self._looked, actors = now, _named_actors()
            self._lost, self._actors = self._actors - actors, self._actors | actors
            self._asked = self._asked or self._runner.pulse.remote()
        waited = now - self._moved
        if self._lost and waited > _LOST_SECONDS and self.phase != SAVING:  # the last one may just be written
            raise self._stop(waited, f"the process {min(self._lost)[1]} was lost")
        if self.seconds and waited > self.seconds:
            raise self._stop(waited, "")

    def _stop(self, waited: float, lost: str) -> TrainingFailure:
        target = self._folder.path / f"{STACKS}.txt"
        parts = collect_stacks(self._folder.path / STACKS, target)
        stands = self._pulse[1] if self._pulse and self._asked is None else "its process does not answer"
        advice = resume_advice(self._folder) if lost else " If it is only slow, raise failures.stall_seconds."
        return TrainingFailure(
            f"Nothing has moved for {waited:.0f} s in the phase {self.phase!r}: {lost or stands}. The stacks of "
            f"{len(parts)} processes are in {target}.{advice}"
        )


def _named_actors() -> set[tuple[str, str]]:
    """The actors of this run that have a name; Ray lists one that is being started again, but none that is gone."""
    import ray

    mine = {ray.get_runtime_context().namespace, _QUEUE}
    found: Any = ray.util.list_named_actors(all_namespaces=True)
    return {(one["namespace"], one["name"]) for one in found if one["namespace"] in mine}
