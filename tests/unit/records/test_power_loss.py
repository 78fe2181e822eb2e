"""The power fails before each operation of a run: no step in a committed checkpoint is lost, nor are its records."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.records.power_loss import Disk, make

from turnsmith.errors import RecordError
from turnsmith.records.advantages import StepAdvantages, read_advantages, write_advantages
from turnsmith.records.checkpoints import (
    PendingCheckpoint,
    best_checkpoint,
    mark_best,
    newest_checkpoint,
    prune,
    read_state,
    remove_unfinished,
    saved_steps,
    write_state,
)
from turnsmith.records.compaction import compact_episodes
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.resume import Recipe
from turnsmith.trajectory import Trajectory

STEPS = 4
SAMPLES = 3


def _save(run: RunFolder, step: int) -> None:
    pending = PendingCheckpoint(run.checkpoints_dir, step)
    (pending.path / "actor").mkdir()
    (pending.path / "actor" / "weights.pt").write_bytes(b"weights of step %d" % step)
    write_state(pending.path, {"step": step})
    pending.seal()
    pending.commit()


def _train(run: RunFolder, disk: Disk, first: int, last: int, *, saves: bool = True) -> None:
    """Write what a run writes, in its order; after each checkpoint its step must not be lost."""
    for step in range(first, last + 1):
        run.append_event("phase", content="generate")
        for part in ("0", "1"):
            write_episodes(run, step, [Trajectory(episode_id=f"{step}-{part}", actions=["a"])], part)
        write_advantages(run, step, StepAdvantages(advantages={f"{step}-0": [0.5]}))
        run.append_ledger({"step": step})
        run.append_metrics({"step": step})
        if step % 2 == 0:
            write_episodes(run, step, [Trajectory(episode_id=f"evaluated-{step}")], subfolder="evaluations")
            run.append_evaluation({"step": step})
        if not saves:
            continue
        _save(run, step)
        disk.promised = step
        mark_best(run.checkpoints_dir, step, -float(step))  # the first stays the best
        prune(run.checkpoints_dir, 1, step)
        compact_episodes(run.episodes_dir, step, most=4)


def _life(disk: Disk) -> None:
    """A run of some steps that stops in the third, is resumed after the second, and saves the last one twice."""
    run = RunFolder.create(disk.folder / "runs", "run")
    run.write_config({"training": {"seed": 1}})
    Recipe(STEPS, 1, environment="games:Game").write(run.path)
    _train(run, disk, 1, 2)
    _train(run, disk, 3, 3, saves=False)
    rewind(run, 2)
    _train(run, disk, 3, STEPS)
    _save(run, STEPS)


def _lost(folder: Path, promised: int) -> str:
    """What a resumed run would not find; empty if all is there."""
    try:
        return _missing(folder, promised)
    except (RecordError, OSError) as error:
        return repr(error)


def _missing(folder: Path, promised: int) -> str:
    run = RunFolder.open(folder / "runs" / "run")
    Recipe.read(run.path)
    run.read_events()
    remove_unfinished(run.checkpoints_dir)
    found = newest_checkpoint(run.checkpoints_dir)
    if found.step < promised or read_state(found.path)["step"] != found.step:
        return f"the checkpoint of step {promised}"
    rewind(run, found.step)
    steps = list(range(1, found.step + 1))
    for name, records in (("metrics", run.read_metrics()), ("ledger", run.read_ledger())):
        if [record["step"] for record in records] != steps:
            return f"{name}: {records}"
    if [record["step"] for record in run.read_evaluations()] != steps[1::2]:
        return "an evaluation"
    episodes = sorted(episode.episode_id for episode in read_episodes(run))
    if episodes != [f"{step}-{part}" for step in steps for part in "01"]:
        return f"episodes: {episodes}"
    if len([read_episodes(file) for file in (run.path / "evaluations").glob("step-*")]) != len(steps[1::2]):
        return "episodes of an evaluation"
    if any(not read_advantages(run, step).advantages for step in steps):
        return "advantages"
    best = best_checkpoint(run.checkpoints_dir)
    if best is not None and best.step not in saved_steps(run.checkpoints_dir):
        return "the best checkpoint"
    left = [file.name for file in run.path.rglob(".*")]
    return f"left over: {left}" if left else ""


def _violations(
    disk: Disk, scratch: Path, is_synced: Callable[[Path], bool] = lambda path: True, most: int = 100, every: int = 1
) -> tuple[int, int, list[str]]:
    """The numbers of crash points and of different crash states that were checked, and what was lost in some."""
    rng, seen, found, number = random.Random(1), set[tuple[object, ...]](), list[str](), 0
    for place, point in enumerate(disk.points(is_synced)):
        if point.promised is None or place % every:
            continue
        number += 1
        for state in disk.states(point, rng, SAMPLES):
            key = (point.promised, *state.items())
            if key not in seen and len(found) < most:
                seen.add(key)
                make(state, scratch)
                lost = _lost(scratch, point.promised)
                found += [f"before {point.operation}: {lost}"] if lost else []
    return number, len(seen), found


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    folder = tmp_path_factory.mktemp("power")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNSMITH_CACHE", str(folder / "key"))
        (folder / "disk").mkdir()
        disk = Disk(folder / "disk")
        patch.setattr(os, "fsync", lambda descriptor: None)  # a thousand resumes would wait for the real disk
        with disk.watching(patch):
            _life(disk)
        yield disk


@pytest.mark.nightly
def test_a_power_failure_before_any_operation_loses_nothing_that_was_committed(disk: Disk, tmp_path: Path) -> None:
    points, states, found = _violations(disk, tmp_path / "scratch")
    print(f"{points} crash points, {states} crash states, {len(found)} violations")
    assert found == []
    assert points > 150
    assert states > 400


def test_a_power_failure_before_some_operations_loses_nothing(disk: Disk, tmp_path: Path) -> None:
    points, _, found = _violations(disk, tmp_path / "scratch", every=23)
    assert found == []
    assert points > 6


@pytest.mark.parametrize(
    "missing", ["metrics.jsonl", "ledger.jsonl", "checkpoints", "episodes", "runs", "run", "weights.pt", ".tmp"]
)
def test_a_missing_sync_is_found(disk: Disk, tmp_path: Path, missing: str) -> None:
    *_, found = _violations(disk, tmp_path / "scratch", lambda path: not path.name.endswith(missing), most=1)
    assert found
