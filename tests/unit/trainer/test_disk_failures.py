"""A full disk, a read-only folder and a run folder of another user end in a sentence that says what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnsmith.cli.main import main
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import RecordError
from turnsmith.records.checkpoints import PendingCheckpoint, write_state
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer import RayPPOTrainer
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.driver.ending import record_end, to_training_failure
from turnsmith.trainer.resume import Recipe, reopen


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path, "run")
    (made.checkpoints_dir / "global_step_3").mkdir()
    return made


class RemoteFailure(Exception):
    """An error of a call to another process, as Ray raises it."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


def test_a_full_disk_is_told_in_a_sentence_though_nothing_can_be_written(run: RunFolder) -> None:
    for name in ("error.log", "events.jsonl"):
        (run.path / name).symlink_to("/dev/full")
    cause = OSError(errno.ENOSPC, "No space left on device", str(run.path / "metrics.jsonl"))
    told = str(to_training_failure(RemoteFailure("a long trace", cause), run, 3))
    assert told == (
        f"The run stopped after step 3: the disk of {run.path} is full; free some space first. "
        f"`turnsmith resume {run.path}` continues from step 3."
    )
    record_end(cause, run)


def test_other_errors_of_files_name_the_file_and_the_reason(run: RunFolder) -> None:
    cause = PermissionError(errno.EACCES, "Permission denied", str(run.path / "ledger.jsonl"))
    told = str(to_training_failure(RemoteFailure("a long trace", cause), run, 3))
    assert f"Permission denied ({run.path / 'ledger.jsonl'}). It is read-only for you: another user owns it" in told
    assert "`turnsmith resume" in told


def test_a_folder_that_cannot_be_written_is_told_when_a_run_is_resumed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: Path, *, trust: bool) -> Recipe:
        raise OSError(errno.EROFS, "Read-only file system", str(folder / "run.lock"))

    monkeypatch.setattr(Recipe, "read", read)
    with pytest.raises(RecordError, match=r"cannot be used: Read-only file system \(.*run.lock\)\. It is read-only"):
        RayPPOTrainer.resume(run.path)
    with pytest.raises(RecordError, match="Read-only file system"):
        reopen(run.path, {})


def _resumable(folder: Path) -> RunFolder:
    run = RunFolder.create(folder, "run")
    run.write_config(to_dict(ConfigStore()))
    CustomEnvironmentDataset.of(None).save(run.path, 0)
    Recipe(99, 1, environment=f"{GuessNumber.__module__}:GuessNumber").write(run.path)
    return run


def _train_until_it_fails(run: RunFolder) -> tuple[int, OSError]:
    """Save checkpoints until the disk is full; return the last step that was saved, and the error."""
    for step in range(1, 99):
        try:
            run.append_metrics({"step": step})
            pending = PendingCheckpoint(run.checkpoints_dir, step)
            (pending.path / "actor").mkdir()
            (pending.path / "actor" / "fsdp_config.json").write_text('{"world_size": 1}')
            (pending.path / "actor" / "weights.pt").write_bytes(bytes(100_000))
            write_state(pending.path, {"step": step})
            pending.seal()
            pending.commit()
        except OSError as error:
            return step - 1, error
    raise AssertionError("the disk is never full")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_after_a_full_disk_and_a_read_only_one_a_run_resumes_from_its_last_checkpoint(small_disk: Path) -> None:
    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", small_disk], check=True)

    run = _resumable(small_disk)
    last, error = _train_until_it_fails(run)
    assert last > 1
    told = str(to_training_failure(RemoteFailure("a long trace", error), run, last))
    assert told.startswith(f"The run stopped after step {last}: the disk of {run.path} is full; free some space first")
    assert told.endswith(f" `turnsmith resume {run.path}` continues from step {last}.")
    record_end(error, run)
    remount("ro")
    with pytest.raises(RecordError, match=r"Read-only file system \(.*\)\. It is read-only for you"):
        reopen(run.path, {})
    remount("rw,size=8m")
    assert reopen(run.path, {}).step == last
    assert [record["step"] for record in run.read_metrics()] == list(range(1, last + 1))
    assert not list(run.path.rglob(".*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_run_folder_of_another_user_ends_in_a_sentence(mode: int, capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, into which other users cannot get
        Path(folder).chmod(0o755)
        run = _resumable(Path(folder))
        run.path.chmod(mode)
        os.seteuid(65534)
        try:
            status = main(["resume", str(run.path), "--trust"])
        finally:
            os.seteuid(0)
    told = capsys.readouterr().err
    assert (status, len(told.splitlines())) == (2, 1), told
    assert "Permission denied" in told
    assert "It is read-only for you: another user owns it" in told
