"""Checkpoints on disk: complete or absent, every kind of damage detected, the right ones kept."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from turnsmith.errors import RecordError
from turnsmith.records.checkpoint_manifest import checksums
from turnsmith.records.checkpoints import (
    PendingCheckpoint,
    best_checkpoint,
    choose_checkpoint,
    mark_best,
    newest_checkpoint,
    open_checkpoint,
    prune,
    read_state,
    remove_unfinished,
    saved_steps,
    write_state,
)
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.signing_key import key_path


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path / "user"))


def save(folder: Path, step: int) -> Path:
    """Write a small checkpoint the way a trainer does."""
    return sealed(folder, step).commit()


def sealed(folder: Path, step: int) -> PendingCheckpoint:
    pending = PendingCheckpoint(folder, step)
    (pending.path / "actor").mkdir()
    (pending.path / "actor" / "model.pt").write_bytes(os.urandom(4096))
    (pending.path / "data.pt").write_bytes(b"position %d" % step)
    (pending.path.parent / "latest_checkpointed_iteration.txt").write_text(str(step))
    write_state(pending.path, {"step": step, "kl_coef": float("inf") if step == 9 else 0.1})
    pending.seal()
    return pending


def test_a_checkpoint_gets_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    pending = PendingCheckpoint(tmp_path, 3)
    (pending.path / "data.pt").write_bytes(b"x")
    pending.seal()
    assert saved_steps(tmp_path) == []
    checkpoint = open_checkpoint(pending.commit())
    assert (checkpoint.step, checkpoint.signed) == (3, True)
    assert saved_steps(tmp_path) == [3]
    assert not list(tmp_path.glob(".*"))


def test_the_newest_checkpoint_is_returned_with_its_state(tmp_path: Path) -> None:
    for step in (9, 10, 2):
        save(tmp_path, step)
    newest = newest_checkpoint(tmp_path)
    assert newest.step == 10
    assert read_state(newest.path) == {"step": 10, "kl_coef": 0.1}


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _cut(file: Path, size: int | None = None) -> None:
    os.truncate(file, file.stat().st_size // 2 if size is None else size)


def _sign_for_another(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["signature"] = "0" * 64
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def _swap_file_and_its_checksum(checkpoint: Path) -> None:
    """What an attacker without the key can do: replace a file, and list it in the manifest."""
    import hashlib

    (checkpoint / "data.pt").write_bytes(b"position X")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["data.pt"]["sha256"] = hashlib.sha256(b"position X").hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def _link_out(checkpoint: Path) -> None:
    outside = checkpoint.parent / "outside.pt"
    (checkpoint / "data.pt").rename(outside)
    (checkpoint / "data.pt").symlink_to(outside)


def _link_folder(checkpoint: Path) -> None:
    elsewhere = checkpoint.parent / "elsewhere"
    (checkpoint / "actor").rename(elsewhere)
    (checkpoint / "actor").symlink_to(elsewhere, target_is_directory=True)


def _link_itself(checkpoint: Path) -> None:
    elsewhere = checkpoint.parent / "elsewhere"
    checkpoint.rename(elsewhere)
    checkpoint.symlink_to(elsewhere, target_is_directory=True)


def _manifest_of_another_step(checkpoint: Path) -> None:
    shutil.copy(checkpoint.parent / "global_step_4" / "manifest.json", checkpoint / "manifest.json")


def _rename_older(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    shutil.copytree(checkpoint.parent / "global_step_4", checkpoint)


def _leave_the_folder(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["../global_step_4/data.pt"] = manifest["files"].pop("data.pt")
    (checkpoint / "data.pt").unlink()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated file": (lambda c: _cut(c / "actor" / "model.pt"), "model.pt has 2048 bytes instead of 4096"),
    "empty file": (lambda c: _cut(c / "data.pt", 0), "data.pt has 0 bytes instead of 10"),
    "flipped bit": (lambda c: _flip(c / "actor" / "model.pt"), "actor/model.pt has changed since it was written"),
    "missing file": (lambda c: (c / "data.pt").unlink(), "data.pt is missing"),
    "missing folder": (lambda c: shutil.rmtree(c / "actor"), "actor/model.pt is missing"),
    "extra pickle": (lambda c: (c / "actor" / "more.pt").write_bytes(b"x"), "actor/more.pt is not in its manifest"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "no manifest.json, so it was never finished"),
    "empty manifest": (lambda c: _cut(c / "manifest.json", 0), "manifest.json cannot be read"),
    "torn manifest": (lambda c: _cut(c / "manifest.json"), "manifest.json cannot be read"),
    "manifest that is a list": (lambda c: (c / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
    "manifest of another step": (_manifest_of_another_step, "its manifest is for step 4"),
    "older one under a new name": (_rename_older, "its manifest is for step 4"),
    "name that leaves the folder": (_leave_the_folder, "../global_step_4/data.pt is missing"),
    "wrong signature": (_sign_for_another, "not written by this user's turnsmith.*trust=True, or --trust"),
    "forged file and checksum": (_swap_file_and_its_checksum, "not written by this user's turnsmith"),
    "link to a file outside": (_link_out, "data.pt is a symlink"),
    "link to a folder outside": (_link_folder, "actor is a symlink"),
    "itself a link": (_link_itself, "it is a symlink"),
    "trainer state changed": (lambda c: (c / "trainer.json").write_text('{"step": 99}'), "trainer.json has"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_damage_is_detected_and_the_previous_checkpoint_is_used(kind: str, tmp_path: Path) -> None:
    damage, sentence = DAMAGE[kind]
    save(tmp_path, 4)
    damage(save(tmp_path, 6))
    warnings: list[str] = []
    assert newest_checkpoint(tmp_path, warn=warnings.append).step == 4
    assert len(warnings) == 1
    assert "global_step_6" in warnings[0]
    assert warnings[0].endswith("Using step 4 instead.")
    with pytest.raises(RecordError, match=sentence):
        newest_checkpoint_of(tmp_path / "global_step_6")


def newest_checkpoint_of(checkpoint: Path) -> None:
    """Load it alone, so that no older checkpoint can be used instead."""
    shutil.rmtree(checkpoint.parent / "global_step_4")
    newest_checkpoint(checkpoint.parent)


def test_verls_tracker_file_is_ignored(tmp_path: Path) -> None:
    save(tmp_path, 4)
    (tmp_path / "latest_checkpointed_iteration.txt").write_bytes(b"")
    assert newest_checkpoint(tmp_path).step == 4


def test_trust_accepts_another_users_checkpoint_but_no_damaged_one(tmp_path: Path) -> None:
    save(tmp_path, 4)
    key_path().unlink()
    with pytest.raises(RecordError, match=r"holds no usable checkpoint.*not written by this user"):
        newest_checkpoint(tmp_path)
    assert not newest_checkpoint(tmp_path, trust=True).signed
    _flip(tmp_path / "global_step_4" / "data.pt")
    with pytest.raises(RecordError, match=r"data\.pt has changed"):
        newest_checkpoint(tmp_path, trust=True)


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no checkpoint: expected a folder called global_step_N"):
        newest_checkpoint(tmp_path / "nothing")
    with pytest.raises(RecordError, match="is not a checkpoint"):
        open_checkpoint(tmp_path)


def test_the_next_save_deletes_what_a_killed_one_left(tmp_path: Path) -> None:
    save(tmp_path, 4)
    killed = PendingCheckpoint(tmp_path, 6)
    (killed.path / "half.pt").write_bytes(b"x")
    assert newest_checkpoint(tmp_path).step == 4
    save(tmp_path, 8)
    assert saved_steps(tmp_path) == [8, 4]
    assert not list(tmp_path.glob(".*"))


def test_the_same_step_again_replaces_the_first(tmp_path: Path) -> None:
    first = (save(tmp_path, 4) / "actor" / "model.pt").read_bytes()
    again = (save(tmp_path, 4) / "actor" / "model.pt").read_bytes()
    assert first != again
    assert newest_checkpoint(tmp_path).step == 4


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    saved = save(tmp_path, 4)
    saved.rename(tmp_path / ".replaced-global_step_4")
    remove_unfinished(tmp_path)
    assert newest_checkpoint(tmp_path).step == 4


class Killed(BaseException):
    """What no code catches, as there is no code that a kill lets run."""


def kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From this operation on files on, none is done any more."""
    count = itertools.count(1)
    for module, name in [
        (io, "open"),
        *((os, name) for name in ("rename", "mkdir", "unlink", "rmdir", "fsync", "open")),
    ]:
        real = getattr(module, name)

        def operation(*args: Any, _real: Any = real, **options: Any) -> Any:
            if next(count) >= number:
                raise Killed
            return _real(*args, **options)

        monkeypatch.setattr(module, name, operation)


@pytest.mark.parametrize("part", ["commit", "save"])
def test_who_reads_after_a_kill_sees_a_checkpoint_that_was_saved_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before, between, was_killed = tmp_path / "before", 0, True
    for step in (1, 2):
        save(before, step)
    mark_best(before, 2, 1.0)
    number = 0
    while was_killed:
        number += 1
        folder = shutil.copytree(before, tmp_path / str(number))
        with monkeypatch.context() as patched, suppress(Killed):
            if part == "commit":
                pending = sealed(folder, 2)
                kill_at(number, patched)
                pending.commit()
            else:
                kill_at(number, patched)
                save(folder, 2)
            was_killed = False
        between += not (folder / "global_step_2").exists()
        assert saved_steps(folder) == [2, 1]
        for checkpoint in (newest_checkpoint(folder), *(choose_checkpoint(folder, step) for step in (2, "best"))):
            assert (checkpoint.step, checkpoint.signed) == (2, True)
            assert read_state(checkpoint.path)["step"] == 2
        remove_unfinished(folder)
        assert sorted(entry.name for entry in folder.iterdir()) == ["best.json", "global_step_1", "global_step_2"]
        assert newest_checkpoint(folder).path == folder / "global_step_2"
    assert number > 10
    assert between == 1


def test_the_last_n_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 7):
        save(tmp_path, step)
        if step == 2:
            assert mark_best(tmp_path, 2, 0.5)
        prune(tmp_path, 2, step)
    assert saved_steps(tmp_path) == [6, 5, 2]
    assert not mark_best(tmp_path, 6, 0.4)
    assert not mark_best(tmp_path, 6, 0.5), "the first of equals stays"
    assert not mark_best(tmp_path, 6, float("nan"))
    assert mark_best(tmp_path, 6, 0.6)
    save(tmp_path, 7)
    prune(tmp_path, 1, 7)
    assert saved_steps(tmp_path) == [7, 6]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert (best.step, best.metric, best.value) == (6, "reward/mean", 0.6)


def test_prune_deletes_nothing_newer_and_nothing_with_last_n_0(tmp_path: Path) -> None:
    for step in (1, 2, 9):
        save(tmp_path, step)
    prune(tmp_path, 0, 2)
    assert saved_steps(tmp_path) == [9, 2, 1]
    prune(tmp_path, 1, 2)
    assert saved_steps(tmp_path) == [9, 2]


def test_a_checkpoint_is_chosen_by_its_step_or_as_the_best_or_last_whoever_wrote_it(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        _sign_for_another(save(tmp_path, step))
    with pytest.raises(RecordError, match="is marked as the best: use --step last, or a number"):
        choose_checkpoint(tmp_path, "best")
    mark_best(tmp_path, 2, 1.0)
    chosen = [choose_checkpoint(tmp_path, step) for step in (1, "1", "best", "last")]
    assert [(checkpoint.step, checkpoint.signed) for checkpoint in chosen] == [(n, False) for n in (1, 1, 2, 3)]
    assert choose_checkpoint(tmp_path).step == 3
    with pytest.raises(RecordError, match="expected a folder called global_step_N"):
        choose_checkpoint(tmp_path, 7)


def test_only_a_saved_checkpoint_can_be_the_best(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="has no checkpoint of it"):
        mark_best(tmp_path, 3, 1.0)
    mark_best(save(tmp_path, 3).parent, 3, 1.0)
    shutil.rmtree(tmp_path / "global_step_3")
    assert best_checkpoint(tmp_path) is None


def test_a_checkpoint_is_written_unsigned_if_the_key_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path / "file" / "inside"))
    warnings: list[str] = []
    pending = PendingCheckpoint(tmp_path / "saved", 1)
    pending.seal(warnings.append)
    pending.commit()
    assert "not signed" in warnings[0]
    assert newest_checkpoint(tmp_path / "saved", trust=True).step == 1


def test_all_of_a_checkpoint_is_on_disk_before_it_gets_its_name(
    tmp_path: Path, flushed: list[tuple[str, bool]]
) -> None:
    final = save(tmp_path, 7)
    hidden = tmp_path / ".writing-7" / "global_step_7"
    before = [path for path, named in flushed if not named]
    for entry in (final, *final.rglob("*")):
        if entry.name not in ("manifest.json", "trainer.json"):  # written beside and renamed, under another name
            times = before.count(str(hidden / entry.relative_to(final)))
            assert times == 1 or (times > 0 and entry.is_dir()), entry
    assert any(".manifest.json." in path for path in before)
    assert (str(tmp_path), True) in flushed, "the rename itself"


def test_files_that_others_hashed_are_hashed_again_only_if_they_change(
    tmp_path: Path, flushed: list[tuple[str, bool]]
) -> None:
    pending = PendingCheckpoint(tmp_path, 7)
    for name in ("same.pt", "changed.pt"):
        (pending.path / name).write_bytes(b"x" * 1000)
    pending.add_checksums(checksums(pending.path, ["same.pt", "changed.pt"]))
    changed = pending.path / "changed.pt"
    changed.write_bytes(b"y" * 1000)
    os.utime(changed, (1, 1))
    pending.seal()
    pending.commit()
    assert newest_checkpoint(tmp_path).signed
    names = [Path(path).name for path, _ in flushed]
    assert (names.count("same.pt"), names.count("changed.pt")) == (1, 2)


@pytest.mark.parametrize(
    ("number", "said"),
    [(2, "a newer turnsmith wrote it: update turnsmith"), ("x", r"its manifest\.json cannot be read")],
)
def test_a_manifest_of_a_newer_format_is_told_apart_from_a_damaged_one(
    tmp_path: Path, number: object, said: str
) -> None:
    path = save(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 1, "what older versions wrote must stay readable"
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": number}))
    with pytest.raises(RecordError, match=said):
        open_checkpoint(path, trust=True)


def test_the_order_of_a_manifests_entries_does_not_matter(tmp_path: Path) -> None:
    manifest = save(tmp_path, 4) / "manifest.json"
    content = json.loads(manifest.read_text())
    content["files"] = dict(reversed(content["files"].items()))
    manifest.write_text(json.dumps(dict(reversed(content.items()))))
    assert newest_checkpoint(tmp_path).signed


def test_pruning_leaves_nothing_behind(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    prune(tmp_path, 1, 3)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name != "user"] == ["global_step_3"]


def test_rewinding_to_the_best_step_keeps_it_and_to_an_earlier_one_forgets_it(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    for step in (1, 2):
        save(run.checkpoints_dir, step)
    mark_best(run.checkpoints_dir, 2, 0.5)
    rewind(run, 2)
    best = best_checkpoint(run.checkpoints_dir)
    assert best is not None
    assert best.step == 2
    rewind(run, 1)
    save(run.checkpoints_dir, 2)
    assert best_checkpoint(run.checkpoints_dir) is None


def test_rewinding_deletes_all_later_steps(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    for step in (1, 2, 3):
        run.append_metrics({"step": step, "text": "a\u2028b"})
        for folder in ("episodes", "trained"):
            (run.path / folder).mkdir(exist_ok=True)
            (run.path / folder / f"step-{step:08d}-0.parquet").write_bytes(b"")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "torn')
    for step in (2, 3):
        save(run.checkpoints_dir, step)
    (run.path / "exports" / "step-3").mkdir(parents=True)
    rewind(run, 2)
    assert [record["step"] for record in run.read_metrics()] == [1, 2]
    assert len(list(run.path.glob("*/step-*.parquet"))) == 4
    assert saved_steps(run.checkpoints_dir) == [2]
    assert (run.checkpoints_dir / "global_step_3.unused").is_dir()
    rewind(run, 0)
    assert run.read_metrics() == []
