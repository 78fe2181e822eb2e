"""Checkpoints on disk: written to a hidden folder and renamed, verified by checksum, old ones deleted.

checkpoints/global_step_40/        one checkpoint; only complete ones have this name
    trainer.json                   its step and the rest of the trainer's state, as plain JSON
    manifest.json                  every file with its size and checksum, signed; written last
checkpoints/best.json              which checkpoint is the best so far
checkpoints/.writing-40/           a checkpoint that is being written, or whose writer was killed
checkpoints/.replaced-global_step_40/  one that is being replaced; it counts until the new one has its name

The other files belong to the trainer; this module does not look inside them.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.records.checkpoint_manifest import Checksum, check_manifest, write_manifest
from turnsmith.records.files import check_writable, flush_folder, make_folder, write_text
from turnsmith.records.json_text import to_json
from turnsmith.records.signing_key import signing_key

Warn = Callable[[str], None]
"""Called with a sentence about what was skipped, and why."""

_NAME = re.compile(r"(?:\.replaced-)?global_step_(\d+)")
_STATE, _BEST = "trainer.json", "best.json"
_WRITING, _REPLACED = ".writing-", ".replaced-"


@dataclass(frozen=True)
class Checkpoint:
    """A complete, verified checkpoint."""

    path: Path
    step: int
    signed: bool
    """Whether this user's turnsmith wrote it."""


@dataclass(frozen=True)
class BestCheckpoint:
    """The best checkpoint so far, and the metric that made it so."""

    step: int
    metric: str
    value: float


class PendingCheckpoint:
    """A checkpoint that is being written: write its files to `path`, then call `seal`, then `commit`.

    If the process is killed at any point, all earlier checkpoints stay as they are; what it leaves behind is hidden
    until `remove_unfinished` deletes it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> pending = PendingCheckpoint(folder, step=5)
        >>> write_state(pending.path, {"step": 5})
        >>> pending.seal()
        >>> saved_steps(folder)
        []
        >>> pending.commit().name, newest_checkpoint(folder).step
        ('global_step_5', 5)
    """

    def __init__(self, folder: Path, step: int) -> None:
        remove_unfinished(folder)
        make_folder(folder)
        self.step = step
        self.final_path = folder / f"global_step_{step}"
        self.path = folder / f"{_WRITING}{step}" / self.final_path.name
        self.path.mkdir(parents=True)
        self._checksums: dict[str, Checksum] = {}

    def add_checksums(self, known: Mapping[str, Checksum]) -> None:
        """Take the checksums of files that other processes wrote and hashed; `seal` hashes the rest."""
        self._checksums |= known

    def seal(self, warn: Warn = lambda sentence: None) -> None:
        """Write the signed manifest and flush everything to disk."""
        write_manifest(self.path, self.step, usable_key(warn), self._checksums)

    def commit(self) -> Path:
        """Rename it to its final name, replacing a checkpoint of the same step."""
        check_writable(self.final_path)
        replaced = self.final_path.with_name(f"{_REPLACED}{self.final_path.name}")
        if self.final_path.exists():
            self.final_path.rename(replaced)
        self.path.rename(self.final_path)
        flush_folder(self.final_path.parent)
        for leftover in (replaced, self.path.parent):
            shutil.rmtree(leftover, ignore_errors=True)
        return self.final_path


def write_state(checkpoint: Path, state: dict[str, Any]) -> None:
    """Write the trainer's state into a checkpoint that is being written."""
    write_text(checkpoint / _STATE, to_json(state) + "\n")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; empty if another program wrote the checkpoint."""
    file = checkpoint / _STATE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def remove_unfinished(folder: Path) -> None:
    """Delete what killed writers left behind."""
    check_writable(folder)
    for leftover in folder.glob(f"{_REPLACED}*"):
        final_path = folder / leftover.name.removeprefix(_REPLACED)
        if not final_path.exists():  # Killed between the two renames of `commit`: undo the first.
            leftover.rename(final_path)
    for leftover in [*folder.glob(f"{_WRITING}*"), *folder.glob(f"{_REPLACED}*")]:
        shutil.rmtree(leftover, ignore_errors=True)


def saved_steps(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, newest first, whether or not they can be loaded."""
    matches = [_NAME.fullmatch(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted({int(match[1]) for match in matches if match}, reverse=True)


def open_checkpoint(path: Path, *, trust: bool = False) -> Checkpoint:
    """Verify the checkpoint in this folder.

    Args:
        path: The folder itself, called `global_step_N`.
        trust: Whether to accept one that this user's turnsmith did not write.

    Raises:
        RecordError: It is damaged or unfinished, or somebody else wrote it and it is not trusted.
    """
    match = _NAME.fullmatch(path.name)
    current = _current_path(path)
    if match is None or not current.is_dir():
        raise RecordError(f"{path} is not a checkpoint: expected a folder called global_step_N.")
    return _verified(current.resolve(), int(match[1]), trust)


def newest_checkpoint(folder: Path, *, trust: bool = False, warn: Warn = lambda sentence: None) -> Checkpoint:
    """The newest usable checkpoint in `folder`; `warn` is called for each newer one that was skipped.

    Raises:
        RecordError: There is none.
    """
    problems: list[str] = []
    for step in saved_steps(folder):
        try:
            checkpoint = _verified(_current_path(folder / f"global_step_{step}"), step, trust)
        except RecordError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warn(f"{problem} Using step {checkpoint.step} instead.")
        return checkpoint
    if not problems:
        raise RecordError(f"{folder} holds no checkpoint: expected a folder called global_step_N in it.")
    raise RecordError(f"{folder} holds no usable checkpoint. {' '.join(problems)}")


def choose_checkpoint(folder: Path, step: int | str = "last", *, warn: Warn = lambda sentence: None) -> Checkpoint:
    """The checkpoint of a step, the `best` or the `last` usable one, whoever wrote it.

    Raises:
        RecordError: There is no such checkpoint, or it is damaged.

    Example:
        >>> choose_checkpoint(Path("runs/gone/checkpoints"), "best")
        Traceback (most recent call last):
        turnsmith.errors.RecordError: No checkpoint of runs/gone is marked as the best: use --step last, or a number.
    """
    if step == "last":
        return newest_checkpoint(folder, trust=True, warn=warn)
    if step == "best":
        best = best_checkpoint(folder)
        if best is None:
            raise RecordError(f"No checkpoint of {folder.parent} is marked as the best: use --step last, or a number.")
        step = best.step
    return open_checkpoint(folder / f"global_step_{step}", trust=True)


def mark_best(folder: Path, step: int, value: float, metric: str = "reward/mean") -> bool:
    """Record the checkpoint of `step` as the best one if `value` is higher than the best so far.

    The best checkpoint is never deleted. A value of another metric always replaces it.

    Returns:
        Whether it is the best now.
    """
    if step not in saved_steps(folder):
        raise RecordError(f"Step {step} cannot be the best: {folder} has no checkpoint of it. Save it first.")
    best = best_checkpoint(folder)
    if math.isnan(value) or (best is not None and best.metric == metric and value <= best.value):
        return False
    write_text(folder / _BEST, json.dumps(asdict(BestCheckpoint(step, metric, float(value)))) + "\n")
    return True


def best_checkpoint(folder: Path) -> BestCheckpoint | None:
    """The best checkpoint so far; None if none was recorded, or it is gone."""
    try:
        content = json.loads((folder / _BEST).read_text(encoding="utf-8"))
        best = BestCheckpoint(int(content["step"]), str(content["metric"]), float(content["value"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return best if best.step in saved_steps(folder) else None


def forget_best(folder: Path, after: int) -> None:
    """Forget the best checkpoint if it is of a step after `after`, which will be trained again."""
    best = best_checkpoint(folder)
    if best is not None and best.step > after:
        (folder / _BEST).unlink()


def prune(folder: Path, last_n: int, step: int) -> None:
    """Delete old checkpoints; keep the newest `last_n` up to `step`, and the best.

    Checkpoints after `step`, left from before a rewind, stay. With `last_n` 0 all stay.
    """
    check_writable(folder)
    best = best_checkpoint(folder)
    kept = {step} if best is None else {step, best.step}
    for old in [saved for saved in saved_steps(folder) if saved <= step][last_n:] if last_n > 0 else []:
        if old not in kept:
            # Renamed first, so that a kill cannot leave half a checkpoint under a checkpoint's name. A run goes on if
            # this fails.
            with suppress(OSError):
                hidden = (folder / f"global_step_{old}").rename(folder / f"{_WRITING}{old}")
                shutil.rmtree(hidden)


def usable_key(warn: Warn = lambda sentence: None) -> bytes | None:
    """The key to sign checkpoints with; if none can be used, calls `warn` with the reason and returns None."""
    try:
        return signing_key()
    except RecordError as error:
        warn(f"The checkpoint is not signed, so loading it will need trust=True or --trust. {error}")
        return None


def _current_path(path: Path) -> Path:
    """Where a checkpoint is: between the two renames of `commit`, only the replaced one exists."""
    replaced = path.with_name(f"{_REPLACED}{path.name}")
    return replaced if replaced.is_dir() and not path.exists() else path


def _verified(path: Path, step: int, trust: bool) -> Checkpoint:
    try:
        if path.is_symlink():
            raise RecordError("it is a symlink")
        signed = check_manifest(path, step, usable_key())
    except (RecordError, OSError) as error:
        raise RecordError(f"The checkpoint {path} is damaged: {error}.") from error
    if not signed and not trust:
        raise RecordError(
            f"The checkpoint {path} was not written by this user's turnsmith, or was changed since. Loading it runs "
            "code from its files: if you trust them, pass trust=True, or --trust on the command line."
        )
    return Checkpoint(path, step, signed)
