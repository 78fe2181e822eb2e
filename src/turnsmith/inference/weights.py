"""New weights for an engine: a folder of safetensors, or names and tensors, read one at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from turnsmith.errors import EngineFailure

if TYPE_CHECKING:
    import torch

    Weights = str | Path | Iterable[tuple[str, torch.Tensor]]
    """Where new weights come from. Names are those of the model's checkpoint."""


_FILE_BYTES = 512 << 20


def is_folder(source: Weights) -> bool:
    """Whether the weights are in a folder; then all of the model's must be there."""
    return isinstance(source, (str, Path))


def read_weights(source: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights by name, in the order they are stored.

    Example:
        >>> from turnsmith.models import resolve
        >>> names = [name for name, _ in read_weights(resolve("tiny"))]
        >>> "model.embed_tokens.weight" in names, "lm_head.weight" in names  # its output head is the same tensor
        (True, False)
    """
    if not isinstance(source, (str, Path)):
        yield from source
        return
    from safetensors import safe_open

    files = sorted(Path(source).glob("*.safetensors"))
    if not files:
        raise EngineFailure(f"There are no weights in {source}: it must be a folder with *.safetensors files.")
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                yield name, opened.get_tensor(name)


@contextmanager
def as_folder(source: Weights) -> Generator[str]:
    """The folder that the weights are in; those that are in none are written to one, in shared memory if possible.

    For engines in other processes: safetensors needs no pickle, and the other side reads without a copy.
    """
    if isinstance(source, (str, Path)):
        yield str(Path(source).absolute())
        return
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="turnsmith-weights-", dir=shared if shared.is_dir() else None) as folder:
        _write(source, Path(folder))
        yield folder


def _write(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    """Write weights in files of bounded size, so that a large model never stands in memory twice."""
    from safetensors.torch import save_file

    bucket: dict[str, torch.Tensor] = {}
    size = files = 0
    for name, tensor in weights:
        # A copy: a checkpoint may hold views, and two names of one tensor, which a file may not.
        bucket[name] = tensor.detach().cpu().contiguous().clone()
        size += tensor.nbytes
        if size >= _FILE_BYTES:
            save_file(bucket, folder / f"{files:05d}.safetensors")
            bucket, size, files = {}, 0, files + 1
    if bucket:
        save_file(bucket, folder / f"{files:05d}.safetensors")
