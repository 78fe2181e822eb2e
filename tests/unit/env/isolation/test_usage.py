"""A worker that its environments have used up is replaced, and no episode fails for it."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.env.isolation.leaks import Leaky

from turnsmith import EnvironmentConfig
from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.env import EnvironmentSpec
from turnsmith.env.host import open_host
from turnsmith.env.isolation import launch, usage
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.pool import close_workers, isolation_status
from turnsmith.env.isolation.usage import WorkerUsage
from turnsmith.errors import EnvironmentFailure

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="worker processes need Linux")


@contextmanager
def most_files(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def play(leak: str, **settings: Any) -> str:
    """Play an episode; gives the process that it was played in."""
    config = EnvironmentConfig(isolation="process", isolation_workers=1, **settings)
    host = open_host(EnvironmentSpec.of(Leaky, config))
    try:
        process = await host.reset(task={"leak": leak})
        await host.step("go")
    finally:
        await host.close()
    return process


async def test_a_leak_of_files_costs_no_episode(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "_told", set())
    with most_files(256):
        processes = [await play("files") for _ in range(8)]
    assert len(set(processes)) == 2, "5 episodes leave 200 files; the first one's are not counted"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "is replaced" in told
    assert "of 256 files open" in told
    assert isolation_status().lost == 0
    await close_workers()


@pytest.mark.nightly  # a worker for each
async def test_what_is_lost_or_has_run_out_is_replaced_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "_told", set())
    kept = await asyncio.gather(*(play("nothing") for _ in range(8)))
    assert len({*kept, await play("nothing")}) == 1, "nothing is used up"
    assert await play("folder") in kept
    assert await play("nothing") not in kept
    with pytest.raises(EnvironmentFailure, match="Too many open files"):
        await play("no_more")
    kept = [await play("nothing"), await play("signals")]
    assert len({*kept, await play("nothing")}) == 2, "who changed what all share had the worker to itself from then on"
    await close_workers()


@pytest.mark.nightly  # a worker for each
@pytest.mark.parametrize(
    ("leak", "settings"),
    [
        ("threads", {"isolation_processes": 400}),
        ("memory", {"isolation_memory_gib": 0.5}),
        ("folder", {}),
        ("locale", {}),
        ("signals", {}),
    ],
)
async def test_forty_leaks_of_each_kind_cost_no_episode(leak: str, settings: dict[str, Any]):
    first = await play("nothing", **settings)
    processes = [await play(leak, **settings) for _ in range(40)]
    assert len({first, *processes}) > 1
    assert isolation_status().lost == 0
    await close_workers()


def test_what_is_there_from_the_beginning_is_not_used_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    counts: dict[m.Wear, tuple[int, int]] = {"files": (700, 1024), "threads": (0, 0), "memory": (90, 100)}
    monkeypatch.setattr(WorkerUsage, "_counts", lambda self, status: dict(counts))
    own = WorkerUsage(EnvironmentThreads(2))
    assert own.used_up() is None
    counts["files"] = (940, 1024)
    assert own.used_up() is None
    counts["files"] = (944, 1024)
    assert own.used_up() == m.UsedUp(0, "files", 944, 1024)
    counts |= {"files": (700, 1024), "threads": (9, 0)}
    assert own.used_up() is None, "no limit"
    monkeypatch.setattr(usage, "_settings", lambda status: {"locale": "de_DE"})
    assert own.used_up() == m.UsedUp(0, "locale")
    monkeypatch.undo()
    monkeypatch.setattr(WorkerUsage, "_counts", lambda self, status: dict(counts))
    here = Path.cwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    try:
        os.chdir(gone)
        gone.rmdir()
        assert own.used_up() == m.UsedUp(0, "folder")
        assert Path.cwd() == here, "those that are still here go on"
    finally:
        os.chdir(here)


def test_errors_that_say_that_there_is_no_more():
    own = WorkerUsage(EnvironmentThreads(2))
    wrapped = EnvironmentFailure("Game.reset raised OSError")
    wrapped.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert own.used_up(wrapped) == m.UsedUp(0, "files")
    assert own.used_up(RuntimeError("can't start new thread")) == m.UsedUp(0, "threads")
    assert own.used_up(OSError(errno.ENOENT, "No such file")) is None
    assert launch.describe_wear(m.UsedUp(0, "threads")) == "there are no more threads for them"
    assert launch.describe_wear(m.UsedUp(0, "memory", 2**30, 2**31)) == "they take 1 of 2 GiB of memory"
