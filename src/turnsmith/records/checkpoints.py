"""Checkpoints on disk: written beside and renamed, found again by their checksums, old ones removed.

checkpoints/global_step_40/        one checkpoint; only a whole one ever has such a name
    trainer.json                   its step, and what else the trainer needs, in plain JSON
    manifest.json                  every file with its size and checksum, signed; written last
checkpoints/best.json              which one is the best so far
checkpoints/.writing-40/           a save that goes on, or was cut off

What is inside besides is the trainer's business; this module does not know it.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.records.checkpoint_manifest import Checksums, check_manifest, flush_folder, write_manifest
from turnsmith.records.files import write_text
from turnsmith.records.json_text import to_json
from turnsmith.records.signing_key import signing_key

Warn = Callable[[str], None]
"""Is told, in a sentence, what was passed over and why."""

_NAME = re.compile(r"global_step_(\d+)")
_STATE, _BEST = "trainer.json", "best.json"
_WRITING, _REPLACED = ".writing-", ".replaced-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole."""

    path: Path
    step: int
    signed: bool
    """Whether this user's turnsmith wrote it."""


@dataclass(frozen=True)
class Best:
    """Which checkpoint is the best so far, and by what."""

    step: int
    metric: str
    value: float


class PendingCheckpoint:
    """A checkpoint that is being written: first its files, into `path`; then `seal`; then `commit`.

    A kill at any moment leaves the checkpoints that were there, and at most something hidden that `clean` removes.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> draft = PendingCheckpoint(folder, step=5)
        >>> write_state(draft.path, {"step": 5})
        >>> draft.seal()
        >>> saved_steps(folder)
        []
        >>> draft.commit().name, newest_checkpoint(folder).step
        ('global_step_5', 5)
    """

    def __init__(self, folder: Path, step: int) -> None:
        clean(folder)
        self.step = step
        self.place = folder / f"global_step_{step}"
        self.path = folder / f"{_WRITING}{step}" / self.place.name
        self.path.mkdir(parents=True)
        self._checksums = Checksums(self.path)

    def hash_early(self) -> None:
        """Begin with the checksums of what is there, while the rest is still written; without it `seal` does all."""
        self._checksums.begin()

    def seal(self, warn: Warn = lambda sentence: None) -> None:
        """Put all of it on the disk, and its manifest beside it."""
        write_manifest(self.path, self.step, _key(warn), self._checksums)

    def commit(self) -> Path:
        """Give it its name, in place of one of the same step that may be there."""
        before = self.place.with_name(f"{_REPLACED}{self.place.name}")
        if self.place.exists():
            self.place.rename(before)
        self.path.rename(self.place)
        flush_folder(self.place.parent)
        for left in (before, self.path.parent):
            shutil.rmtree(left, ignore_errors=True)
        return self.place


def write_state(checkpoint: Path, state: dict[str, Any]) -> None:
    """Put what the trainer needs besides into a checkpoint that is being written."""
    write_text(checkpoint / _STATE, to_json(state) + "\n")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What `write_state` put there; empty if something else wrote the checkpoint."""
    file = checkpoint / _STATE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def clean(folder: Path) -> None:
    """Remove what saves left behind that were cut off."""
    for left in folder.glob(f"{_REPLACED}*"):
        place = folder / left.name.removeprefix(_REPLACED)
        if not place.exists():  # cut off between its two renames
            left.rename(place)
    for left in [*folder.glob(f"{_WRITING}*"), *folder.glob(f"{_REPLACED}*")]:
        shutil.rmtree(left, ignore_errors=True)


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, whole or not, newest first."""
    names = [_NAME.fullmatch(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(name[1]) for name in names if name), reverse=True)


def open_checkpoint(path: Path, *, trust: bool = False) -> Checkpoint:
    """Check the checkpoint in this folder.

    Args:
        path: The folder itself, called `global_step_N`.
        trust: Whether to take one that this user's turnsmith did not write.

    Raises:
        RecordError: It is damaged or unfinished, or somebody else wrote it and it is not trusted.
    """
    named = _NAME.fullmatch(path.name)
    if named is None or not path.is_dir():
        raise RecordError(f"{path} is no checkpoint: expected a folder called global_step_N.")
    return _checked(path.resolve(), int(named[1]), trust)


def newest_checkpoint(folder: Path, *, trust: bool = False, warn: Warn = lambda sentence: None) -> Checkpoint:
    """The newest checkpoint in `folder` that is whole; `warn` is told of each newer one that was passed over.

    Raises:
        RecordError: There is none.
    """
    sentences: list[str] = []
    for step in saved_steps(folder):
        try:
            checkpoint = _checked(folder / f"global_step_{step}", step, trust)
        except RecordError as error:
            sentences.append(str(error))
            continue
        for sentence in sentences:
            warn(f"{sentence} Step {checkpoint.step} is used instead.")
        return checkpoint
    if not sentences:
        raise RecordError(f"{folder} holds no checkpoint: expected a folder called global_step_N in it.")
    raise RecordError(f"{folder} holds no checkpoint that can be used. {' '.join(sentences)}")


def mark_best(folder: Path, step: int, value: float, metric: str = "reward/mean") -> bool:
    """Make the checkpoint of `step` the best one, if `value` is higher than that of the best so far.

    The best is kept however old it is. A value of another metric replaces it.

    Returns:
        Whether it is the best now.
    """
    if step not in saved_steps(folder):
        raise RecordError(f"Step {step} cannot be the best: {folder} has no checkpoint of it. Save it first.")
    before = best_checkpoint(folder)
    if math.isnan(value) or (before is not None and before.metric == metric and value <= before.value):
        return False
    write_text(folder / _BEST, json.dumps(asdict(Best(step, metric, float(value)))) + "\n")
    return True


def best_checkpoint(folder: Path) -> Best | None:
    """Which checkpoint is the best so far; None: none was marked, or it is gone."""
    try:
        about = json.loads((folder / _BEST).read_text(encoding="utf-8"))
        best = Best(int(about["step"]), str(about["metric"]), float(about["value"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return best if best.step in saved_steps(folder) else None


def forget_best(folder: Path, after: int) -> None:
    """Let none be the best, if the best is that of a step after `after`, which is made again."""
    best = best_checkpoint(folder)
    if best is not None and best.step > after:
        (folder / _BEST).unlink()


def prune(folder: Path, last_n: int, step: int) -> None:
    """Remove the checkpoints before `step` but the newest of them, `last_n` in all with that of `step`, and the best.

    Those after `step`, as there are when a run was taken back, stay. With `last_n` 0 all stay.
    """
    best = best_checkpoint(folder)
    kept = {step} if best is None else {step, best.step}
    for old in [saved for saved in saved_steps(folder) if saved <= step][last_n:] if last_n > 0 else []:
        if old not in kept:
            # Renamed first: a kill in the middle must not leave half of one under a checkpoint's name. One that cannot
            # be removed is no reason to stop a run.
            with suppress(OSError):
                gone = (folder / f"global_step_{old}").rename(folder / f"{_WRITING}{old}")
                shutil.rmtree(gone, ignore_errors=True)


def _checked(path: Path, step: int, trust: bool) -> Checkpoint:
    try:
        if path.is_symlink():
            raise RecordError("it is a link to another place")
        signed = check_manifest(path, step, _key())
    except (RecordError, OSError) as error:
        raise RecordError(f"The checkpoint {path} is damaged: {error}.") from error
    if not signed and not trust:
        raise RecordError(
            f"The checkpoint {path} was not written by this user's turnsmith, or was changed since. Loading it runs "
            "code that is in its files: if you trust them, pass trust=True, or --trust on the command line."
        )
    return Checkpoint(path, step, signed)


def _key(warn: Warn = lambda sentence: None) -> bytes | None:
    try:
        return signing_key()
    except RecordError as error:
        warn(f"The checkpoint is not signed, so that loading it takes trust=True or --trust. {error}")
        return None
