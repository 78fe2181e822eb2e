"""Merged episode files: each episode is read exactly once, at any moment, and after a crash at any point."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from turnsmith.errors import RecordError
from turnsmith.records import compaction
from turnsmith.records.compaction import EpisodeCompactor, compact_episodes, truncate_episodes
from turnsmith.records.episode_files import episode_files
from turnsmith.records.episodes import iter_episodes, read_episodes, write_episodes
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.trajectory import Outcome, Trajectory, TurnRecord


def episode(name: str) -> Trajectory:
    rng = random.Random(name)
    made = Trajectory(episode_id=name, group_id=name[:2], outcome=rng.choice(list(Outcome)), seed=rng.randrange(99))
    made.tokens.open([1, 2, 3])
    span = made.tokens.append_model([rng.randrange(1000) for _ in range(9)], [-rng.random() for _ in range(9)])
    made.turns.append(TurnRecord(*span, "stop", 7, rng.random(), rng.random()))
    made.states, made.actions, made.rewards, made.dones = ["a door"], [name], [rng.random()], [True]
    made.infos = [{"seen": [1, None]}]
    return made


def fill(run: RunFolder, steps: range, workers: int = 3) -> None:
    for step in steps:
        for part in range(workers):
            write_episodes(run, step, [episode(f"s{step}w{part}n{n}") for n in range(2)], str(part))


def names(run: RunFolder | Path, step: int | None = None) -> list[str]:
    return [one.episode_id for one in iter_episodes(run, step)]


def files(run: RunFolder) -> list[str]:
    return sorted(file.name for file in run.episodes_dir.iterdir())


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "demo")


def test_what_a_killed_process_was_writing_is_deleted(run: RunFolder) -> None:
    fill(run, range(1, 6))
    (run.episodes_dir / ".steps-00000001-00000004.parquet.17.tmp").write_bytes(b"half")
    compact_episodes(run.episodes_dir, 4, most=3)
    assert not list(run.episodes_dir.glob(".*"))


def test_many_files_become_one_with_the_same_episodes(run: RunFolder) -> None:
    fill(run, range(1, 6))
    before = read_episodes(run)
    compact_episodes(run.episodes_dir, 4, most=3)
    assert files(run) == [*(f"step-00000005-{part}.parquet" for part in range(3)), "steps-00000001-00000004.parquet"]
    assert read_episodes(run) == before
    assert names(run, 3) == [f"s3w{part}n{n}" for part in range(3) for n in range(2)]


def test_what_is_written_while_it_merges_is_kept(run: RunFolder) -> None:
    fill(run, range(1, 4))
    compact_episodes(run.episodes_dir, 3, most=3)
    seen = list(episode_files(run.episodes_dir))
    fill(run, range(4, 5))
    compaction._delete_merged(run.episodes_dir, seen)
    assert len(names(run, 4)) == 6


def test_readers_can_skip_the_other_steps_unless_all_are_short(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(run, range(1, 5))
    compact_episodes(run.episodes_dir, 4, most=3)
    merged = run.episodes_dir / "steps-00000001-00000004.parquet"
    assert pq.ParquetFile(merged).num_row_groups == 1
    fill(run, range(5, 9))
    before = read_episodes(run)
    monkeypatch.setattr(compaction, "_SHARED_BYTES", 1)
    compact_episodes(run.episodes_dir, 8, most=3)
    assert pq.ParquetFile(run.episodes_dir / "steps-00000001-00000008.parquet").num_row_groups == 8
    assert read_episodes(run) == before


_MERGE_AGAIN_AND_AGAIN = """
import sys
from pathlib import Path
from benchmarks.memory_growth import private_bytes
from turnsmith.records.compaction import EpisodeCompactor
from turnsmith.records.episodes import write_episodes
from turnsmith.trajectory import Trajectory

folder = Path(sys.argv[1])
compactor = EpisodeCompactor(folder / "episodes", print)
for step in range(1, 521):
    write_episodes(folder, step, [Trajectory(episode_id=f"{step}-{n}", actions=["a"]) for n in range(4)])
    compactor.step_done(step)
    compactor.wait()
    if step in (130, 520):
        print(private_bytes("self"))
"""


@pytest.mark.nightly
def test_merging_takes_no_more_memory_the_longer_a_run_is(tmp_path: Path) -> None:
    # Of its own process: what a thread has freed stays with its process.
    asked = subprocess.run([sys.executable, "-c", _MERGE_AGAIN_AND_AGAIN, tmp_path], capture_output=True, text=True)
    early, late = map(int, asked.stdout.split())
    assert late - early < 390 * 13_000, asked.stderr


def test_step_0_is_read_and_merged_like_the_others(run: RunFolder) -> None:
    fill(run, range(3))
    before = names(run)
    assert len(before) == 18
    compact_episodes(run.episodes_dir, 2, most=3)
    assert files(run) == ["steps-00000000-00000002.parquet"]
    assert names(run) == before


def test_the_number_of_files_does_not_grow_with_workers_and_steps(
    run: RunFolder,
) -> None:
    most = 0
    for step in range(1, 9):
        fill(run, range(step, step + 1), workers=8)
        compact_episodes(run.episodes_dir, step, most=16)
        most = max(most, len(files(run)))
    assert most <= 16 + 8
    assert len(names(run)) == len(set(names(run))) == 8 * 8 * 2


def test_few_files_are_left_alone(run: RunFolder) -> None:
    fill(run, range(1, 3))
    before = files(run)
    compact_episodes(run.episodes_dir, 2, most=6)
    assert files(run) == before


def test_a_large_file_is_not_written_again_and_its_step_stays_whole(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(run, range(1, 6))
    before = read_episodes(run)
    large = write_episodes(run, 3, [episode(f"large{n}") for n in range(500)], "1")
    monkeypatch.setattr(compaction, "_SMALL_BYTES", large.stat().st_size)
    compact_episodes(run.episodes_dir, 5, most=3)
    assert files(run) == [f"step-00000003-{part}.parquet" for part in range(3)] + [
        "steps-00000001-00000002.parquet",
        "steps-00000004-00000005.parquet",
    ]
    assert len(names(run)) == len(before) - 2 + 500


def test_a_file_between_two_that_stay_as_they_are_does_so_too(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(5):
        write_episodes(run, step, [episode(f"s{step}n{n}") for n in range(500 if step % 2 else 1)])
    before, largest = files(run), (run.episodes_dir / "step-00000001-0.parquet").stat().st_size
    monkeypatch.setattr(compaction, "_SMALL_BYTES", largest // 2)
    compact_episodes(run.episodes_dir, 4, most=2)
    assert files(run) == before, "a merged file of one is nothing but a copy"


def test_long_steps_share_no_row_group(run: RunFolder) -> None:
    long = episode("long")
    long.infos = [{"seen": "x" * 2**18}]
    for step in range(1, 4):
        write_episodes(run, step, [long])
    compact_episodes(run.episodes_dir, 3, most=2)
    assert pq.ParquetFile(run.episodes_dir / "steps-00000001-00000003.parquet").num_row_groups == 3


def test_a_file_with_other_columns_stays_as_it_is(run: RunFolder) -> None:
    fill(run, range(1, 6))
    old = run.episodes_dir / "step-00000002-0.parquet"
    pq.write_table(pq.read_table(old).drop_columns(["exact"]), old)
    before = names(run)
    compact_episodes(run.episodes_dir, 5, most=3)
    assert "steps-00000003-00000005.parquet" in files(run)
    assert [file for file in files(run) if file.startswith("step-00000002")] != []
    assert names(run) == before


def same(found: object, wanted: object) -> None:
    assert found == wanted


class Crash(BaseException):
    """As if the process were killed."""


def crash_at(number: int, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> list[str]:
    """Look at the folder before every change of a file, and stop at one of them; returns the changes."""
    changes: list[str] = []

    def watched(name: str, change: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            look()
            if len(changes) == number:
                raise Crash
            changes.append(name)
            return change(*args, **named)

        return call

    for name in ("unlink", "replace"):
        monkeypatch.setattr(Path, name, watched(name, getattr(Path, name)))
    monkeypatch.setattr(os, "fsync", watched("fsync", os.fsync))
    return changes


def copies(tmp_path: Path, prepare: Callable[[RunFolder], None]) -> Iterator[tuple[int, RunFolder]]:
    """Any number of equal run folders."""
    first = RunFolder.create(tmp_path, "first")
    prepare(first)
    for number in itertools.count():
        yield number, RunFolder(Path(shutil.copytree(first.path, tmp_path / str(number))))


def test_a_crash_between_any_two_changes_loses_nothing_and_shows_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(run: RunFolder) -> None:
        fill(run, range(1, 3), workers=2)
        compact_episodes(run.episodes_dir, 2, most=3)  # so that a merged file is merged again
        fill(run, range(3, 5), workers=2)

    for number, run in copies(tmp_path, prepare):
        before = names(run)
        with monkeypatch.context() as patched:
            changes = crash_at(number, patched, lambda run=run, before=before: same(names(run), before))
            try:
                compact_episodes(run.episodes_dir, 4, most=3)
            except Crash:
                assert len(changes) == number
            else:
                assert changes.count("unlink") >= 5
                assert {"unlink", "replace", "fsync"} == set(changes)
                return
        assert names(run) == before
        compact_episodes(run.episodes_dir, 4, most=0)
        assert files(run) == ["steps-00000001-00000004.parquet"]
        assert names(run) == before


def test_a_rewind_cuts_merged_files_and_can_crash_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(run: RunFolder) -> None:
        fill(run, range(1, 5), workers=2)
        compact_episodes(run.episodes_dir, 4, most=3)
        fill(run, range(5, 6), workers=2)
        write_episodes(run, 3, [episode("s3w0n0")], "0")  # left by a crash

    for number, run in copies(tmp_path, prepare):
        wanted = [name for name in names(run) if int(name[1]) <= 2]
        is_over = True
        with monkeypatch.context() as patched:
            crash_at(number, patched, lambda: None)
            try:
                truncate_episodes(run.episodes_dir, 2)
            except Crash:
                is_over = False
        assert set(wanted) <= set(names(run))
        rewind(run, 2)
        assert names(run) == wanted
        assert files(run) == ["steps-00000001-00000002.parquet"]
        if is_over:
            assert number > 3
            return


def test_a_rewind_deletes_the_very_next_step(run: RunFolder) -> None:
    fill(run, range(1, 4))
    truncate_episodes(run.episodes_dir, 2)
    assert {name[1] for name in names(run)} == {"1", "2"}


def test_a_rewind_to_the_first_step_of_a_merged_file_keeps_that_step(run: RunFolder) -> None:
    fill(run, range(1, 5), workers=2)
    compact_episodes(run.episodes_dir, 4, most=3)
    truncate_episodes(run.episodes_dir, 1)
    assert {name[1] for name in names(run)} == {"1"}


def test_a_reader_goes_on_where_it_was_when_files_are_merged_meanwhile(tmp_path: Path) -> None:
    for place, run in copies(tmp_path, lambda run: fill(run, range(1, 4), workers=2)):
        before = names(run)
        if place > len(before):
            return
        reading = iter_episodes(run)
        read = [next(reading).episode_id for _ in range(place)]
        compact_episodes(run.episodes_dir, 3, most=0)
        assert read + [one.episode_id for one in reading] == before


def test_a_file_that_is_listed_but_not_there_is_an_error_in_words(run: RunFolder) -> None:
    (run.episodes_dir / "step-00000001-0.parquet").symlink_to("nowhere")
    with pytest.raises(RecordError, match="listed, but does not exist"):
        read_episodes(run)


def test_the_compactor_works_beside_the_run_and_warns_if_it_cannot(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(compaction, "_write", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
    monkeypatch.setattr(compact_episodes, "__defaults__", (3,))
    fill(run, range(1, 3))
    compactor = EpisodeCompactor(run.episodes_dir, told.append)
    compactor.step_done(2)
    compactor.wait()
    assert told == [
        f"The episode files in {run.episodes_dir} could not be merged: disk full. They can be read as they are."
    ]
    monkeypatch.undo()
    monkeypatch.setattr(compact_episodes, "__defaults__", (3,))
    compactor.step_done(2)
    compactor.wait()
    assert len(episode_files(run)) == 1
