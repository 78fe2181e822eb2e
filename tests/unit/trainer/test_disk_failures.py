"""A full disk, a read-only folder and a run folder of another user end in a sentence that says what to do."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from turnsmith.cli.main import main
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import RecordError
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer import RayPPOTrainer
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.driver.remote_errors import record_end, to_training_failure
from turnsmith.trainer.recipe import Recipe
from turnsmith.trainer.resume import Parts, reopen


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
        reopen(run.path, Parts())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_run_folder_of_another_user_ends_in_a_sentence(mode: int, capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, into which other users cannot get
        Path(folder).chmod(0o755)
        run = RunFolder.create(folder, "run")
        run.write_config(to_dict(ConfigStore()))
        CustomEnvironmentDataset.of(None).save(run.path, 0)
        Recipe(1, 1, environment=f"{GuessNumber.__module__}:GuessNumber").write(run.path)
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
