"""Weights for an update: a folder of safetensors, or (name, tensor) pairs, read one tensor at a time."""

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
    """A folder, or (name, tensor) pairs. The names are those of the model's checkpoint."""

_MAX_FILE_BYTES = 512 << 20
BUCKET_BYTES = 256 << 20
"""Weights are sent from trainer to server in buckets of about this size."""


def is_folder(source: Weights) -> bool:
    """Whether the source is a folder, which must hold all weights of the model."""
    return isinstance(source, (str, Path))


def read_weights(source: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield names and tensors, in the order they are stored.

    Example:
        >>> from turnsmith.inference.models import resolve
        >>> names = [name for name, _ in read_weights(resolve("tiny"))]
        >>> "model.embed_tokens.weight" in names, "lm_head.weight" in names  # the output head is tied to the embedding
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
            for name in opened.keys():  # noqa: SIM118 - not a dict
                yield name, opened.get_tensor(name)


@contextmanager
def as_folder(source: Weights) -> Generator[str]:
    """The folder of the weights; (name, tensor) pairs are written to a temporary one, in shared memory if possible.

    For engines in other processes, which read safetensors without pickle and without a copy.
    """
    if isinstance(source, (str, Path)):
        yield str(Path(source).absolute())
        return
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="turnsmith-weights-", dir=shared if shared.is_dir() else None) as folder:
        _write(source, Path(folder))
        yield folder


def _write(weights: Iterable[tuple[str, torch.Tensor]], folder: Path) -> None:
    """Write weights to files of bounded size, so that a large model is never in memory twice."""
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    size = files = 0
    for name, tensor in weights:
        # A copy: a checkpoint may hold views, or one tensor under two names, which safetensors rejects.
        tensors[name] = tensor.detach().cpu().contiguous().clone()
        size += tensor.nbytes
        if size >= _MAX_FILE_BYTES:
            save_file(tensors, folder / f"{files:05d}.safetensors")
            tensors, size, files = {}, 0, files + 1
    if tensors:
        save_file(tensors, folder / f"{files:05d}.safetensors")
