"""Weights for an update: a folder of safetensors, or (name, tensor) pairs, read one tensor at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from turnsmith.errors import EngineFailure, TrainingFailure

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


def forget_weights(model: torch.nn.Module) -> None:
    """Fill the parameters with NaN, so that `never_loaded` finds those that no weight was copied into since.

    The names that a loader returns would not do: it counts a parameter that is made of several weights as loaded when
    it has one of them.
    """
    for module in model.modules():
        size = getattr(module, "moe_config", None)  # of vLLM's experts: no weight reaches what pads them
        whole = size and (size.hidden_dim_unpadded, size.intermediate_size_per_partition_unpadded)
        if not size or (size.hidden_dim, size.intermediate_size_per_partition) == whole:
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point():
                    parameter.data.fill_(float("nan"))


def never_loaded(model: torch.nn.Module) -> list[str]:
    """The parameters that are NaN, each with how much of it; what shares its memory with another counts once.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 2)
        >>> forget_weights(model)
        >>> model.load_state_dict({"weight": torch.tensor([[1.0, 2.0], [3.0, float("nan")]])}, strict=False) and None
        >>> never_loaded(model)
        ['weight (25 %)', 'bias (100 %)']
    """
    found: list[str] = []
    for name, parameter in model.named_parameters():
        # The sum first, because it takes no memory.
        if parameter.is_floating_point() and parameter.data.sum().isnan():
            count = int(parameter.data.isnan().sum())
            found.append(f"{name} ({100 * count / parameter.numel():.3g} %)")
    return found


def check_arrived(engine: str, missing: list[str]) -> None:
    """Raise a TrainingFailure if an engine got no weights for some of its parameters."""
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise TrainingFailure(
            f"The trainer's weights do not reach all of {engine}, which would generate with others: nothing came for "
            f"{', '.join(missing[:3])}{more}. Train another model, or all weights if it was an adapter."
        )
