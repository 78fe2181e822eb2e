"""The list of a checkpoint's files with their sizes and checksums: the mark that it is whole, and whose it is."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.records.files import write_text
from turnsmith.records.signing_key import signature

MANIFEST = "manifest.json"
FORMAT = 1
"""Goes up when an older turnsmith could misread a new manifest."""

_THREADS = 4


class Checksums:
    """The checksums of a folder's files, in threads: hashing and waiting for the disk both leave Python free.

    `begin` may be called when some files are whole and others still to come, so that the time overlaps. A file that
    changes after it was begun is hashed again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(_THREADS)
        self._begun: dict[str, tuple[int, Future[tuple[int, str]]]] = {}

    def begin(self) -> None:
        """Hash what is there and was not hashed yet, and put it on the disk."""
        for name in _files(self._folder):
            path = self._folder / name
            changed = path.stat().st_mtime_ns
            if name not in self._begun or self._begun[name][0] != changed:
                self._begun[name] = changed, self._pool.submit(_checksum, path, flush=True)

    def results(self) -> dict[str, tuple[int, str]]:
        """Size and checksum of every file."""
        with self._pool:
            self.begin()
            return {name: self._begun[name][1].result() for name in sorted(_files(self._folder))}


def write_manifest(folder: Path, step: int, key: bytes | None, checksums: Checksums | None = None) -> None:
    """List every file of `folder`, put all of it on the disk, and sign the list if there is a key."""
    sums = (checksums or Checksums(folder)).results()
    files = {name: {"size": size, "sha256": digest} for name, (size, digest) in sums.items()}
    manifest: dict[str, Any] = {"format": FORMAT, "step": step, "files": files}
    if key is not None:
        manifest["signature"] = signature(_signed_part(manifest), key)
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for inside in {folder, *((folder / name).parent for name in files)}:
        flush_folder(inside)


def check_manifest(folder: Path, step: int, key: bytes | None) -> bool:
    """Whether `folder` is as it was when it was written, and with this key.

    Returns:
        True: `key` signed it. False: it is whole, but somebody else wrote it.

    Raises:
        RecordError: A file is missing, added or changed, or there is no readable manifest; says which.
    """
    manifest = _read(folder)
    if manifest["step"] != step:
        raise RecordError(f"its manifest is that of step {manifest['step']}")
    expected = manifest["files"]
    found = set(_files(folder))
    for wrong, what in ((expected.keys() - found, "is missing"), (found - expected.keys(), "does not belong to it")):
        if wrong:
            raise RecordError(f"{min(wrong)} {what}")
    for name in sorted(found):
        size = (folder / name).stat().st_size
        if size != expected[name]["size"]:
            raise RecordError(f"{name} has {size} bytes instead of {expected[name]['size']}")
    with ThreadPoolExecutor(_THREADS) as pool:
        sums = pool.map(lambda name: (name, _checksum(folder / name)[1]), sorted(found))
        for name, digest in sums:
            if digest != expected[name]["sha256"]:
                raise RecordError(f"{name} has changed since it was written")
    signed = str(manifest.get("signature", ""))
    return key is not None and hmac.compare_digest(signed.encode(), signature(_signed_part(manifest), key).encode())


def flush_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST).is_file():
        raise RecordError(f"it has no {MANIFEST}, so it was never finished")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {
            str(name): {"size": int(f["size"]), "sha256": str(f["sha256"])} for name, f in manifest["files"].items()
        }
        known = int(manifest["format"]) <= FORMAT
        manifest |= {"files": files, "step": int(manifest["step"])}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, OverflowError, RecursionError):
        raise RecordError(f"its {MANIFEST} cannot be read") from None
    if not known:
        raise RecordError("a newer turnsmith wrote it: update turnsmith")
    return manifest


def _signed_part(manifest: dict[str, Any]) -> bytes:
    part = {name: manifest[name] for name in ("format", "step", "files")}
    return json.dumps(part, sort_keys=True, separators=(",", ":")).encode()


def _files(folder: Path, inside: str = "") -> Iterator[str]:
    """The names of all files but the manifest, as in `actor/model.pt`. A link could lead anywhere: none is allowed."""
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            name = f"{inside}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder, f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                if name != MANIFEST:
                    yield name
            else:
                raise RecordError(f"{name} is a link or no plain file")


def _checksum(path: Path, *, flush: bool = False) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if flush:
            os.fsync(file.fileno())
        return file.tell(), digest
