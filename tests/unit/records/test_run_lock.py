"""One writer for a run: any other is refused, or notices it at its next write."""

from __future__ import annotations

import fcntl
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnsmith.errors import RecordError
from turnsmith.records import run_lock
from turnsmith.records.checkpoints import PendingCheckpoint, prune, remove_unfinished
from turnsmith.records.compaction import compact_episodes
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import claim_run, join_run, write_for
from turnsmith.records.run_state import process_start, this_process
from turnsmith.trajectory import Trajectory

LOCK = "run.lock"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_ENDING_SECONDS", 0.3)


def name_holder(folder: Path, pid: int, host: str | None = None) -> None:
    """Write another holder into the lock file."""
    holder = {"token": "theirs", "since": 1_790_000_000.0, **this_process(), "pid": pid, "born": None}
    (folder / LOCK).write_text(json.dumps(holder | ({"host": host} if host else {})))


@contextmanager
def claiming(folder: Path) -> Generator[subprocess.Popen[str]]:
    """A process that has claimed the run, and is killed at the end of the block."""
    code = (
        "import sys, pathlib, turnsmith.records.run_lock as run_lock\n"
        "held = run_lock.claim_run(pathlib.Path(sys.argv[1]), 0)\n"
        "print(flush=True)\n"
        "input()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "\n"
        yield child
        child.kill()


def without_locks(*_: object) -> None:
    """`fcntl.flock` as on a file system without locks."""
    raise OSError(37, "No locks available")


def test_a_run_that_is_held_is_refused_after_a_moment(tmp_path: Path) -> None:
    with claim_run(tmp_path, 0):
        began, worked = time.monotonic(), time.process_time()
        with pytest.raises(RecordError, match=r"is in use: this process has held it since 20.*Call cleanup"):
            claim_run(tmp_path, 60)
        assert 0.3 <= time.monotonic() - began < 20
        assert time.process_time() - worked < 0.15, "it waits without working"
    claim_run(tmp_path, 0).release()


@pytest.mark.parametrize("locks", ["ours", "none", "private"])
def test_whoever_is_refused_is_told_who_holds_the_run(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    name_holder(tmp_path, other.pid)
    if locks != "ours":
        monkeypatch.setattr(fcntl, "flock", without_locks if locks == "none" else lambda *_: None)
    held = f"is in use: process {other.pid} on {platform.node()} has trained in it since 2026-09-2. .*Stop that process"
    with pytest.raises(RecordError, match=held):
        claim_run(tmp_path, 0)
    born = process_start(other.pid)
    other.kill()
    while process_start(other.pid) is not None:
        time.sleep(0.01)
    # Nobody has waited for it, so that it still has its id.
    (tmp_path / LOCK).write_text(json.dumps(json.loads((tmp_path / LOCK).read_text()) | {"born": born}))
    claim_run(tmp_path, 0).release()


def test_a_run_is_free_when_its_holder_lets_go_or_is_killed(tmp_path: Path) -> None:
    held = claim_run(tmp_path, 0)
    threading.Timer(0.1, held.release).start()
    with claim_run(tmp_path, 30):
        assert not held.release.alive
    del held
    with claiming(tmp_path) as child, pytest.raises(RecordError, match=f"process {child.pid} on"):
        claim_run(tmp_path, 0)
    claim_run(tmp_path, 0).release()


def test_a_run_stays_locked_until_those_that_write_for_its_holder_have_ended(tmp_path: Path) -> None:
    holder = claim_run(tmp_path, 0)
    writer = join_run(tmp_path, holder.token)
    holder.release()
    with pytest.raises(RecordError, match="is in use: an unknown process still writes to it"):
        claim_run(tmp_path, 0.2)
    writer.release()
    with claim_run(tmp_path, 0) as later, pytest.raises(RecordError, match="took it over"):
        join_run(tmp_path, "another" + later.token)


def test_a_run_of_another_host_is_refused_where_nothing_tells_whether_it_still_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_holder(tmp_path, 7, "node-1")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", without_locks)
        with pytest.raises(RecordError, match=r"process 7 on node-1 took it at 20.* no locks .* delete .*run.lock"):
            claim_run(tmp_path, 0)
    with claim_run(tmp_path, 0):  # a lock that can be had tells that it has ended
        assert json.loads((tmp_path / LOCK).read_text())["host"] == platform.node()


def removed(folder: Path) -> str:
    (folder / LOCK).unlink()
    return "run.lock was removed while this process wrote to it"


def replaced(folder: Path) -> str:
    (folder / LOCK).unlink()
    (folder / LOCK).write_text("")
    return "run.lock was replaced while this process wrote to it"


def taken_by_another_host(folder: Path) -> str:
    name_holder(folder, 7, "node-1")
    return "process 7 on node-1 took it over at 2026-09-2.*, so this process no longer writes to it"


def removed_and_claimed(folder: Path) -> str:
    (folder / LOCK).unlink()
    with claiming(folder) as child:
        pass
    return f"process {child.pid} on {platform.node()} took it over at 20"


@pytest.mark.parametrize("lose", [removed, replaced, taken_by_another_host, removed_and_claimed])
def test_a_run_that_is_lost_is_noticed_at_the_next_write_of_any_kind(
    tmp_path: Path, lose: Callable[[Path], str]
) -> None:
    run = RunFolder.create(tmp_path, "run")
    pending = PendingCheckpoint(run.checkpoints_dir, 1)
    pending.seal()
    writes: list[Callable[[], object]] = [
        lambda: run.append_metrics({"step": 1}),
        lambda: run.append_ledger({"step": 1}),
        lambda: run.append_event("warning"),
        lambda: run.write_config({}),
        lambda: write_episodes(run, 1, [Trajectory()]),
        lambda: compact_episodes(run.episodes_dir, 1),
        lambda: PendingCheckpoint(run.checkpoints_dir, 2),
        pending.seal,
        pending.commit,
        lambda: prune(run.checkpoints_dir, 1, 1),
        lambda: remove_unfinished(run.checkpoints_dir),
    ]
    with claim_run(run.path, 0) as lock:
        write_for(run.path, lock.token)  # as a process that plays episodes does
        run.append_event("before")
        told = lose(run.path)
        before = sorted(run.path.rglob("*")), (run.path / "events.jsonl").read_bytes()
        for write in writes:
            with pytest.raises(RecordError, match=f"no longer belongs to this process: {told}"):
                write()
        assert (sorted(run.path.rglob("*")), (run.path / "events.jsonl").read_bytes()) == before
    run.append_event("of a reader that is no writer of the run any more")
