"""The chain of a run's ledger: each line has the digests of what its step wrote, and a signature that covers them and
the line before. A step cannot be changed, added or removed without a trace, except with the user's key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import orjson

from turnsmith.records.checkpoint_manifest import MANIFEST
from turnsmith.records.checkpoints import usable_key
from turnsmith.records.json_text import to_json
from turnsmith.records.row_digests import row_digests
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.signing_key import key_name, signature

CHECKPOINT = "checkpoint"
"""In a line's `files`, the name of the manifest of the step's checkpoint."""
SETTINGS = "config.yaml"
_ROWS, _METRICS = "episodes", "metrics"

Standing = Literal["signed", "unsigned", "changed"]
"""A line is signed with this user's key, not signed with it (so nothing is known), or changed since it was signed."""


class LedgerChain:
    """Signs the lines of a run's ledger, one after the other.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> line = LedgerChain(run).sign({"step": 1, "trained": 8}, {"step": 1, "reward/mean": 0.5})
        >>> run.append_ledger(line)
        >>> sorted(line["files"]), standings(run, run.read_ledger(), usable_key())
        (['metrics'], ['signed'])
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._digests = {int(line["step"]): digest_of(line) for line in newest_of_each_step(run.read_ledger())}

    def sign(
        self, line: Mapping[str, Any], metrics: Mapping[str, Any] | None, checkpoint: Path | None = None
    ) -> dict[str, Any]:
        """Add the digests of the step's records to its line, and sign it if there is a key.

        Args:
            line: The step's line of the ledger; its episodes and advantages are in the run folder.
            metrics: The step's line of the metrics, which is written next.
            checkpoint: A checkpoint that is being written with this step.
        """
        step = int(line["step"])
        self._digests = {earlier: digest for earlier, digest in self._digests.items() if earlier < step}
        rows = dict(row_digests(sorted(self._run.episodes_dir.glob(f"step-{step:08d}-*.parquet"))))
        files = step_digests(self._run, step, rows.get(step), metrics, not self._digests)
        if checkpoint is not None:
            files[CHECKPOINT] = file_digest(checkpoint / MANIFEST)
        signed: dict[str, Any] = {**line, "files": files}
        if key := usable_key():
            signed["key"] = key_name(key)
            signed["signature"] = _line_signature(signed, _before(self._run, [*self._digests.values()]), key)
        self._digests[step] = digest_of(signed)
        return signed


def step_digests(
    run: RunFolder, step: int, rows: str | None, metrics: Mapping[str, Any] | None, is_first: bool
) -> dict[str, str]:
    """The SHA-256 of each existing record of a step, by name.

    Args:
        run: The run.
        step: The step.
        rows: The digest of its episodes.
        metrics: Its line of the metrics.
        is_first: Whether it is the run's first step, which includes the evaluation before training.
    """
    digests = {_ROWS: rows, _METRICS: None if metrics is None else digest_of(metrics)}
    for number in (0, step) if is_first else (step,):
        for file in run.path.glob(f"*/step-{number:08d}*.parquet"):
            if file.parent != run.episodes_dir:
                digests[f"{file.parent.name}/{file.name}"] = file_digest(file)
    if (run.path / SETTINGS).is_file():
        digests[SETTINGS] = file_digest(run.path / SETTINGS)
    return {name: digest for name, digest in digests.items() if digest is not None}


def standings(run: RunFolder, lines: Sequence[Mapping[str, Any]], key: bytes | None) -> list[Standing]:
    """The standing of each line; the lines are the `newest_of_each_step` of a ledger."""
    known: list[Standing] = []
    digests: list[str] = []
    for line in lines:
        if key is None or line.get("key") != key_name(key):
            known.append("unsigned")
        else:
            expected = _line_signature(line, _before(run, digests), key)
            known.append("signed" if _is_same(line.get("signature"), expected) else "changed")
        digests.append(digest_of(line))
    return known


def signed_end(run: RunFolder, step: int) -> dict[str, str]:
    """Fields for the event of a run's end, which sign that the ledger ended with its current last line.

    Empty if this user's key did not sign that line.
    """
    key, lines = usable_key(), newest_of_each_step(run.read_ledger())
    if key is None or not lines or lines[-1].get("key") != key_name(key):
        return {}
    return {"key": key_name(key), "signature": signature(f"end {step} {digest_of(lines[-1])}".encode(), key)}


def is_signed_end(event: Mapping[str, Any], last_line: Mapping[str, Any], key: bytes) -> bool:
    """Whether the event of a run's end was signed with this key when this was the ledger's last line."""
    expected = signature(f"end {event.get('step')} {digest_of(last_line)}".encode(), key)
    return _is_same(event.get("signature"), expected)


def newest_of_each_step(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of a ledger or of metrics, without those of steps that were repeated from an earlier checkpoint.

    Example:
        >>> newest_of_each_step([{"step": 1}, {"step": 2}, {"step": 3}, {"step": 2, "again": True}])
        [{'step': 1}, {'step': 2, 'again': True}]
    """
    newest: list[dict[str, Any]] = []
    for line in lines:
        while newest and newest[-1]["step"] >= line["step"]:
            newest.pop()
        newest.append(line)
    return newest


def digest_of(record: Mapping[str, Any]) -> str:
    """The SHA-256 of a record, the same before it is written and after it was read."""
    return hashlib.sha256(_canonical(record)).hexdigest()


def file_digest(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _canonical(record: Mapping[str, Any]) -> bytes:
    return to_json(orjson.loads(to_json(record))).encode()


def _before(run: RunFolder, digests: Sequence[str]) -> str:
    """The digest that a line signs as its predecessor: the line before, or run.json."""
    return digests[-1] if digests else hashlib.sha256(run.read_bytes("run.json")).hexdigest()


def _line_signature(line: Mapping[str, Any], before: str, key: bytes) -> str:
    content = {name: value for name, value in line.items() if name != "signature"}
    return signature(f"{before}\n".encode() + _canonical(content), key)


def _is_same(actual: object, expected: str) -> bool:
    return hmac.compare_digest(str(actual).encode(), expected.encode())
