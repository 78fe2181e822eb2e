"""A run that stands still is stopped, with a sentence that names the part and the stacks of its processes."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import RayError

from turnsmith import ConfigStore, RunFolder
from turnsmith.errors import TrainingFailure
from turnsmith.records.stacks import VARIABLE, enable_stack_dump
from turnsmith.trainer.driver.cluster import Cluster
from turnsmith.trainer.session import STACKS, Watchdog, wait_for_call

pytestmark = pytest.mark.e2e


class Runner:
    """As much of a task runner as the watchdog sees."""

    def __init__(self) -> None:
        enable_stack_dump("task runner")
        self.began = time.monotonic()

    def next_events(self, timeout: float) -> list[tuple[str, Any]]:
        time.sleep(timeout)
        return []

    def pulse(self) -> tuple[int, str]:
        waited = time.monotonic() - self.began
        return int(min(waited, 2.0) * 10), f"3 episodes wait for the engine (7-0 for {waited:.0f} s)"

    def worker_id(self) -> str:
        return ray.WorkerID.from_random().hex()

    def stand_still(self) -> None:
        time.sleep(600)

    def hold_the_interpreter(self) -> None:
        ctypes.PyDLL(None).sleep(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, RunFolder]]:
    run = RunFolder.create(tmp_path_factory.mktemp("runs"), "demo")
    started = Cluster(ConfigStore(), "cpu", {VARIABLE: str(run.path / STACKS)})
    started.start()
    yield started, run
    started.close()


def test_what_stands_still_is_named(cluster: tuple[Cluster, RunFolder]) -> None:
    started, run = cluster
    for method, where in (
        ("stand_still", "3 episodes wait for the engine (7-0 for "),
        ("hold_the_interpreter", "the task runner does not answer"),
    ):
        runner = started.actor(Runner, threads=4)
        ray.get(runner.next_events.remote(0.0))  # it is there: the clock is not about what it imports
        watchdog = Watchdog(3.0, runner, started, run)
        watchdog.move("generate")
        began = time.monotonic()
        with pytest.raises(TrainingFailure) as raised:
            wait_for_call(getattr(runner, method).remote(), runner, watchdog, lambda kind, content: None)
        assert time.monotonic() - began > 3.0
        told = str(raised.value)
        assert re.match(r"The run has made no progress for \d+ s in phase 'generate': ", told)
        assert where in told
        stacks = (run.path / "stacks.txt").read_text()
        assert f"in {method}" in stacks
        assert "task runner, process " in stacks
        assert "the process that watches" in stacks


def test_workers_are_children_of_the_fork_server_and_the_run_stops_without_it(
    cluster: tuple[Cluster, RunFolder],
) -> None:
    started, run = cluster
    runner = started.actor(Runner, threads=4)
    ray.get(runner.pulse.remote())
    workers = started._fork_server.process.children()  # type: ignore[union-attr]
    assert "ray::Runner" in [" ".join(worker.cmdline()).strip() for worker in workers]
    drawn: list[Any] = ray.get([each.worker_id.remote() for each in (runner, started.actor(Runner, threads=4))])
    assert drawn[0] != drawn[1]
    started._fork_server.process.kill()  # type: ignore[union-attr]
    watchdog = Watchdog(600.0, runner, started, run)
    with pytest.raises((TrainingFailure, RayError)):  # its workers end with it
        wait_for_call(runner.stand_still.remote(), runner, watchdog, lambda kind, content: None)
    assert started.lost() == "fork server"
    started.close()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
