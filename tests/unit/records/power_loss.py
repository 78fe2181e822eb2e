"""Simulated power loss: what a disk may hold if the power fails between any two operations on a folder.

The operations of Python's `os` module are intercepted, and before each one the folder is recorded: the entries of every
directory, and the content of every file. From these records a crash state is made as POSIX allows it. A file has the
content that it had when it was last synced, or any later one, or half of the latest and zeros; a directory has the
entries that it had when it was last synced, or any later ones. Each file and directory chooses for itself, so that
what was not synced is dropped or reordered.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_OPERATIONS = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link")


@dataclass(frozen=True)
class _Moment:
    """What was there before an operation."""

    operation: str
    nodes: dict[int, dict[str, int] | bytes]
    """By inode, the entries of each directory as {name: inode}, and the content of each file."""
    promised: Any
    synced: tuple[Path, int] | None
    """What the operation syncs: its path and inode."""


@dataclass(frozen=True)
class CrashPoint:
    """A moment before an operation: all versions that each file and directory may have after a power failure."""

    operation: str
    nodes: dict[int, list[Any]]
    """By inode, the version that was synced last, and all later ones."""
    promised: Any
    """What must not be lost, by then."""


class Disk:
    """Records what happens in a folder inside `watching`.

    Args:
        folder: The folder; it is there, and synced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.promised: Any = None
        """What must not be lost from now on; the caller sets it."""
        self._moments: list[_Moment] = []
        self._held: list[int] = []  # descriptors of deleted files, so that their inode numbers are not given again
        self._lock = threading.RLock()
        self._root = folder.stat().st_ino

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Intercept the operations in this block."""
        with monkeypatch.context() as patch:
            for name in _OPERATIONS:
                patch.setattr(os, name, self._intercepted(name, getattr(os, name)))
            patch.setattr(os, "fsync", self._fsync(os.fsync))
            yield
        self._record("the end")
        for descriptor in self._held:
            os.close(descriptor)

    def points(self, is_synced: Callable[[Path], bool] = lambda path: True) -> Iterator[CrashPoint]:
        """All crash points; `is_synced` tells whether a sync of a path counts, for a planted mistake."""
        nodes: dict[int, list[Any]] = {}
        for number, moment in enumerate(self._moments):
            for inode, now in moment.nodes.items():
                # What is new has not been on the disk before.
                versions = nodes.setdefault(inode, [type(now)() if number else now])
                if versions[-1] != now:
                    versions.append(now)
            yield CrashPoint(moment.operation, {inode: list(each) for inode, each in nodes.items()}, moment.promised)
            if moment.synced is not None and moment.synced[1] in nodes and is_synced(moment.synced[0]):
                del nodes[moment.synced[1]][:-1]

    def _intercepted(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def intercept(*args: Any, **options: Any) -> Any:
            with self._lock:
                self._record(f"{name} {' '.join(str(arg) for arg in args)}")
                for path in args if name in ("rename", "replace", "unlink", "remove", "rmdir") else ():
                    with suppress(OSError):
                        self._held.append(os.open(path, os.O_RDONLY, dir_fd=options.get("dir_fd")))
                return operation(*args, **options)

        return intercept

    def _fsync(self, operation: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            with self._lock:
                path = Path(f"/proc/self/fd/{descriptor}").readlink()
                self._record(f"fsync {path}", (path, os.fstat(descriptor).st_ino))
                operation(descriptor)

        return fsync

    def _record(self, operation: str, synced: tuple[Path, int] | None = None) -> None:
        nodes: dict[int, dict[str, int] | bytes] = {}
        for folder, _, files in os.walk(self.folder):
            nodes[Path(folder).stat().st_ino] = {entry.name: entry.inode() for entry in os.scandir(folder)}
            nodes |= {path.stat().st_ino: path.read_bytes() for path in (Path(folder) / name for name in files)}
        operation = operation.replace(str(self.folder), "")
        self._moments.append(_Moment(operation, nodes, self.promised, synced))

    def states(self, point: CrashPoint, rng: random.Random, samples: int) -> Iterator[dict[str, bytes | None]]:
        """Crash states of a moment, as {path: content}, folders as None.

        The first ones are those in which mistakes show most often; then come random ones.
        """
        newest = {inode: len(versions) - 1 for inode, versions in point.nodes.items()}
        oldest, loose = dict.fromkeys(newest, 0), [inode for inode, last in newest.items() if last]
        folders = {inode for inode, versions in point.nodes.items() if isinstance(versions[0], dict)}
        chosen = [oldest, newest]
        chosen += [{one: newest[one] if (one in folders) is alone else 0 for one in newest} for alone in (True, False)]
        chosen += [oldest | {one: newest[one]} for one in loose] + [newest | {one: 0} for one in loose]
        chosen += [oldest | {one: rng.randint(0, newest[one]) for one in loose} for _ in range(samples if loose else 0)]
        for choice in chosen:
            yield self._tree(point, choice, torn=False)
        yield self._tree(point, newest, torn=True)

    def _tree(self, point: CrashPoint, choice: dict[int, int], *, torn: bool) -> dict[str, bytes | None]:
        tree: dict[str, bytes | None] = {}

        def add(inode: int, path: str) -> None:
            versions = point.nodes.get(inode, [b""])
            version = versions[choice.get(inode, 0)]
            if isinstance(version, bytes):
                half = (len(versions[0]) + len(version)) // 2
                is_torn = torn and len(versions) > 1
                tree[path] = version[:half] + bytes(len(version) - half) if is_torn else version
                return
            tree[path] = None
            for name, entry in sorted(version.items()):
                add(entry, f"{path}/{name}" if path else name)

        add(self._root, "")
        return tree


def make(tree: dict[str, bytes | None], folder: Path) -> None:
    """Make a crash state in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in tree.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.write_bytes(content)
