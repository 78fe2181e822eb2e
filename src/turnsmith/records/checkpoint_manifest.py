"""The manifest of a checkpoint: every file with its size and checksum, signed: shows completeness and authorship."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from turnsmith.errors import RecordError
from turnsmith.records.files import flush_folder, write_text
from turnsmith.records.signing_key import signature

MANIFEST = "manifest.json"
FORMAT = 1
"""Raised when an older turnsmith could misread a new manifest."""

_THREADS = 4


class Checksum(NamedTuple):
    """The checksum of a file that was flushed to disk."""

    size: int
    sha256: str
    changed: int
    """The file's modification time in nanoseconds, which shows later changes."""


def checksums(folder: Path, names: Iterable[str]) -> dict[str, Checksum]:
    """Hash these files of a folder, and flush them to disk, in threads: hashing and disk reads both release the GIL."""
    listed = list(names)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(listed, pool.map(lambda name: _checksum(folder / name, flush=True), listed), strict=True))


def write_manifest(folder: Path, step: int, key: bytes | None, known: Mapping[str, Checksum] | None = None) -> None:
    """Write the manifest of `folder`, signed if there is a key, and flush everything to disk.

    Args:
        folder: The checkpoint.
        step: Its step.
        key: To sign it with.
        known: What other processes have hashed already; a file that has changed since is hashed again.
    """
    sums = {name: known[name] for name in _files(folder) if known and _is_current(folder / name, known.get(name))}
    sums |= checksums(folder, (name for name in _files(folder) if name not in sums))
    files = {name: {"size": sums[name].size, "sha256": sums[name].sha256} for name in sorted(sums)}
    manifest: dict[str, Any] = {"format": FORMAT, "step": step, "files": files}
    if key is not None:
        manifest["signature"] = signature(_signed_part(manifest), key)
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for subfolder in {folder, *((folder / name).parent for name in files)}:
        flush_folder(subfolder)


def check_manifest(folder: Path, step: int, key: bytes | None) -> bool:
    """Check that `folder` is exactly what its manifest lists.

    Returns:
        Whether `key` signed the manifest; if not, somebody else wrote the folder.

    Raises:
        RecordError: A file is missing, added or changed, or the manifest is missing or unreadable. The message is the
            end of a sentence about the checkpoint.
    """
    manifest = _read(folder)
    if manifest["step"] != step:
        raise RecordError(f"its manifest is for step {manifest['step']}")
    expected = manifest["files"]
    present = set(_files(folder))
    if missing := expected.keys() - present:
        raise RecordError(f"{min(missing)} is missing")
    if extra := present - expected.keys():
        raise RecordError(f"{min(extra)} is not in its manifest")
    for name in sorted(present):
        size = (folder / name).stat().st_size
        if size != expected[name]["size"]:
            raise RecordError(f"{name} has {size} bytes instead of {expected[name]['size']}")
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = pool.map(lambda name: (name, _checksum(folder / name).sha256), sorted(present))
        for name, digest in sums:
            if digest != expected[name]["sha256"]:
                raise RecordError(f"{name} has changed since it was written")
    signed = str(manifest.get("signature", ""))
    return key is not None and hmac.compare_digest(signed.encode(), signature(_signed_part(manifest), key).encode())


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise RecordError(f"it has no {MANIFEST}, so it was never finished")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {
            str(name): {"size": int(f["size"]), "sha256": str(f["sha256"])} for name, f in manifest["files"].items()
        }
        is_known = int(manifest["format"]) <= FORMAT
        manifest |= {"files": files, "step": int(manifest["step"])}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, OverflowError, RecursionError):
        raise RecordError(f"its {MANIFEST} cannot be read") from None
    if not is_known:
        raise RecordError("a newer turnsmith wrote it: update turnsmith")
    return manifest


def _signed_part(manifest: dict[str, Any]) -> bytes:
    part = {name: manifest[name] for name in ("format", "step", "files")}
    return json.dumps(part, sort_keys=True, separators=(",", ":")).encode()


def _files(folder: Path, subfolder: str = "") -> Iterator[str]:
    """The relative paths of all files but the manifest. Refuses symlinks, which could point anywhere."""
    with os.scandir(folder / subfolder) as entries:
        for entry in entries:
            name = f"{subfolder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder, f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                if name != MANIFEST:
                    yield name
            else:
                raise RecordError(f"{name} is a symlink or not a regular file")


def _is_current(path: Path, known: Checksum | None) -> bool:
    status = path.stat()
    return known is not None and (known.size, known.changed) == (status.st_size, status.st_mtime_ns)


def _checksum(path: Path, *, flush: bool = False) -> Checksum:
    with path.open("rb") as file:
        changed = os.fstat(file.fileno()).st_mtime_ns
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if flush:
            os.fsync(file.fileno())
        return Checksum(file.tell(), digest, changed)
