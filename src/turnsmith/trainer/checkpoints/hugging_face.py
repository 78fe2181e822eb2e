"""From what verl's FSDP2 ranks wrote to a checkpoint to a Hugging Face folder: the whole model, or its adapter alone.

verl can write such a folder with each checkpoint, but labels it bfloat16 whatever its dtype is, collects the whole
model in one process, and gives the weights of a LoRA run names that transformers does not know, so that it initialises
them at random. Here the weights are put together from the ranks' files and written in pieces, by one process or by
several at the same time; a process holds one piece. Knows nothing of a checkpoint but its `actor/`.

The ranks' files are read with torch's `weights_only` loader, which runs no code in them, unlike the one that verl
resumes with. They are mapped into memory, so that only the bytes of a block that is asked for are read.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.inference.chat.formats import FORMATS
from turnsmith.inference.models.shape import tensors_in


def saved_ranks(part: Path) -> int:
    """Number of ranks that wrote `actor/` or `critic/` of a checkpoint."""
    return int(json.loads((part / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])


def shard_path(part: Path, ranks: int, rank: int, kind: str = "model") -> Path:
    """The file with the shard of one rank; `kind`: `model`, `optim` or `extra_state`."""
    return part / f"{kind}_world_size_{ranks}_rank_{rank}.pt"


def read_shard(path: Path) -> Any:
    """What one rank saved, with sharded tensors as DTensors on the mesh of the run that saved them."""
    import torch

    importlib.import_module("torch.distributed.tensor")  # without it, torch refuses DTensors
    # torch warns of a device mesh that is read without its process group, which is all that we need.
    quiet = logging.getLogger("torch.distributed.device_mesh")
    level, _ = quiet.level, quiet.setLevel(logging.ERROR)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    finally:
        quiet.setLevel(level)


def read_shards(part: Path, kind: str = "model") -> list[Any]:
    """What every rank saved."""
    ranks = saved_ranks(part)
    return [read_shard(shard_path(part, ranks, rank, kind)) for rank in range(ranks)]


def joined(name: str, parts: Sequence[Any], shape: Sequence[int] = (), offset: Sequence[int] = ()) -> Any:
    """A tensor, or a block of it, in memory of its own.

    Args:
        name: For errors.
        parts: What each rank saved of the tensor.
        shape: Shape of the block; empty: the whole tensor.
        offset: Where the block begins in the tensor.
    """
    import torch

    first = parts[0]
    shape, offset = shape or tuple(first.shape), offset or [0] * first.ndim
    held, dim = _in_order(name, parts)
    if first.ndim == 0:
        return held[0].clone()
    overlaps: list[Any] = []
    begin = 0
    for local in held:
        start, stop = max(begin, offset[dim]), min(begin + local.shape[dim], offset[dim] + shape[dim])
        if start < stop:
            overlaps.append(local.narrow(dim, start - begin, stop - start))
        begin += local.shape[dim]
    if begin != first.shape[dim]:
        raise RecordError(f"{name} has the size {begin} instead of {first.shape[dim]} along dimension {dim}.")
    for other in set(range(first.ndim)) - {dim}:
        overlaps = [one.narrow(other, offset[other], shape[other]) for one in overlaps]
    return torch.cat(overlaps, dim=dim) if overlaps else torch.empty(shape, dtype=first.dtype)


def _in_order(name: str, parts: Sequence[Any]) -> tuple[list[Any], int]:
    """The ranks' own tensors in the order in which they make up the whole, and the dimension along which they do."""
    from torch.distributed.tensor import DTensor, Shard

    first = parts[0]
    if not isinstance(first, DTensor):  # Every rank has what FSDP2 does not shard.
        return [first], 0
    cut = [(axis, placed.dim) for axis, placed in enumerate(first.placements) if isinstance(placed, Shard)]
    if len(cut) > 1 or any(placed.is_partial() for placed in first.placements):
        raise RecordError(f"{name} is sharded as {first.placements}, which turnsmith cannot merge.")
    if not cut:
        return [first.to_local()], 0
    axis, dim = cut[0]
    mesh = first.device_mesh.mesh
    # Along the other axes of the mesh the ranks are replicas.
    along = mesh[tuple(slice(None) if other == axis else 0 for other in range(mesh.ndim))]
    return [parts[rank].to_local() for rank in along.tolist()], dim


ADAPTER = "adapter"
"""The folder of the adapter in a checkpoint that has nothing else of the model."""
_PREFIX = "base_model.model."
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"
_LAYER = re.compile(r"(.*?\.\d+)\.")
_PIECE_BYTES = 2 * 1024**3
_OURS = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")


def write_model(actor: Path, target: Path, *, dtype: str | None = None, trust_remote_code: bool = False) -> None:
    """Write the whole model, with an adapter merged into it, and its tokenizer and chat template.

    Of a checkpoint that has an adapter alone, the base model is read from where it says.

    Args:
        actor: A checkpoint's folder `actor`.
        target: The folder to write; may be `huggingface` in `actor`, which has everything but the weights.
        dtype: Such as `bfloat16`; None: as it was trained.
        trust_remote_code: Whether to run Python code that comes with the model.
    """
    if (actor / ADAPTER).is_dir():
        _write_merged(actor, target, dtype, trust_remote_code)
    else:
        write_weights(actor, target, dtype=dtype, trust_remote_code=trust_remote_code)
    finish_model(actor, target)


def _write_merged(actor: Path, target: Path, dtype: str | None, trust_remote_code: bool) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM

    (trained,) = {one.dtype for one in read_shard(shard_path(actor, saved_ranks(actor), 0)).values()}
    code: Any = {"dtype": trained, "trust_remote_code": trust_remote_code}
    model: Any = AutoPeftModelForCausalLM.from_pretrained(str(actor / ADAPTER), **code)
    model.merge_and_unload().to(trained if dtype is None else getattr(torch, dtype)).save_pretrained(target)


def write_weights(
    actor: Path,
    target: Path,
    *,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    place: int = 0,
    places: int = 1,
    piece_bytes: int = _PIECE_BYTES,
) -> list[Path]:
    """Write one process's share of the weights, as `write_model` does; return the safetensors files.

    When all shares are written, one process calls `finish_model`.

    Args:
        actor: As in `write_model`, like `target`, `dtype` and `trust_remote_code`.
        place: Which of `places` processes this is.
        piece_bytes: Size of a file, unless a single layer is larger. As much memory is needed, and as much page cache.
    """
    import torch

    model = _empty_model(actor / "huggingface", trust_remote_code)
    # Closed again, and read again for each piece: pages of mapped files that were read would add up.
    shapes: dict[str, Any] = read_shard(shard_path(actor, saved_ranks(actor), 0))
    sources = _sources(shapes, actor, model)
    sizes = {name: shapes[source].numel() * shapes[source].itemsize for name, source in sources.items()}
    trained = next(one.dtype for one in shapes.values() if one.is_floating_point())
    wanted = None if dtype is None else getattr(torch, dtype)
    model.to(wanted or trained)  # transformers writes the dtype of this model, which has no weights, into the config
    del shapes
    pieces, written = _pieces(sizes, piece_bytes), list[Path]()
    for number in range(place, len(pieces), places):
        name = f"model-{number + 1:05d}-of-{len(pieces):05d}.safetensors" if len(pieces) > 1 else "model.safetensors"
        written.append(target / name)
        piece = {name: sources[name] for name in pieces[number]}
        _write_piece(model, _read(piece, actor, model, wanted), written[-1], with_config=number == 0)
    return written


def finish_model(actor: Path, target: Path) -> None:
    """Write what is not weights: which file has which of them, the tokenizer and the chat template."""
    files = sorted(target.glob("model-*-of-*.safetensors"))
    sizes = {file.name: _sizes(file) for file in files}
    if sizes:
        total = sum(size for one in sizes.values() for size in one.values())
        where = {name: file for file, one in sizes.items() for name in one}
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    _copy_rest(actor / "huggingface", target)
    _readable(target)


def write_template(folder: Path, template: str | None) -> None:
    """Write the chat template of a run beside the tokenizer, which was saved with its own, or with none."""
    file, tokenizer = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if not tokenizer.is_file():
        return
    has_own = file.is_file() or json.loads(tokenizer.read_text(encoding="utf-8")).get("chat_template")
    if template is not None or not has_own:
        file.write_text(template or FORMATS["plain"], encoding="utf-8")


def write_adapter(actor: Path, target: Path, *, base_model: str) -> None:
    """Write the LoRA adapter alone, as PEFT and vLLM load it; `base_model` is the model it was trained on.

    Raises:
        RecordError: The run trained all weights.
    """
    from peft import LoraConfig
    from safetensors.torch import save_file

    meta = _lora_meta(actor)
    if meta is None:
        raise RecordError("This run trained all weights, so there is no adapter: leave out --adapter.")
    shards = read_shards(actor)
    pairs = {
        name.replace(".default.", "."): joined(name, [shard[name] for shard in shards])
        for name in shards[0]
        if name.endswith((_LORA_A, _LORA_B))
    }
    target.mkdir(parents=True, exist_ok=True)
    LoraConfig(
        base_model_name_or_path=base_model,
        task_type=meta["task_type"],
        r=meta["r"],
        lora_alpha=meta["lora_alpha"],
        target_modules=sorted({name.split(".")[-3] for name in pairs}),
        inference_mode=True,
    ).save_pretrained(str(target))
    save_file(pairs, target / "adapter_model.safetensors", metadata={"format": "pt"})
    _copy_rest(actor / "huggingface", target)
    _readable(target)


def _empty_model(folder: Path, trust_remote_code: bool) -> Any:
    """The model without weights, for its parameter names and `save_pretrained`."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    vars(config).pop("attn_implementation", None)  # how it was trained here says nothing about how to run it
    named = getattr(transformers, (config.architectures or [""])[0], None)
    # The name comes from the checkpoint: make sure that it is a model class, and not anything else callable.
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    with torch.device("meta"):
        if named is not None and is_model and not (trust_remote_code and getattr(config, "auto_map", None)):
            model = named(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model


def _sources(saved: Mapping[str, Any], actor: Path, model: Any) -> dict[str, str]:
    """The model's own name of each weight, and its name in training.

    The second name of a tied weight is left out: written under both, transformers would no longer tie them.
    """
    is_lora = _lora_meta(actor) is not None
    sources: dict[str, str] = {}
    for name in saved:
        if is_lora and "lora_" in name:
            if not name.endswith((_LORA_A, _LORA_B)):
                raise RecordError(f"{name} belongs to a kind of adapter that turnsmith cannot merge: use --adapter.")
            continue
        sources[name.removeprefix(_PREFIX).replace(".base_layer.", ".") if is_lora else name] = name
    model.tie_weights()
    first = {name for name, _ in model.named_parameters()}
    second = {name for name, _ in model.named_parameters(remove_duplicate=False)} - first
    missing = first - sources.keys()
    if missing:
        raise RecordError(f"The checkpoint has no weights called {min(missing)}: does it belong to another model?")
    return {name: source for name, source in sources.items() if name not in second}


def _pieces(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Split names so that the bytes of each piece stay under a limit. A layer stays together.

    transformers renames and splits the weights of some layers when it writes them, and needs all of a layer for that.

    Example:
        >>> _pieces({"embed": 3, "layers.0.up": 2, "layers.0.down": 2, "layers.1.up": 2, "norm": 1}, limit=5)
        [['embed'], ['layers.0.up', 'layers.0.down'], ['layers.1.up', 'norm']]
    """
    units: dict[str, list[str]] = {}
    for name in sizes:
        layer = _LAYER.match(name)
        units.setdefault(layer[1] if layer else name, []).append(name)
    pieces: list[list[str]] = []
    room = 0
    for names in units.values():
        size = sum(sizes[name] for name in names)
        if not pieces or size > room:
            pieces.append([])
            room = limit
        pieces[-1] += names
        room -= size
    return pieces


def _read(sources: Mapping[str, str], actor: Path, model: Any, dtype: Any) -> dict[str, Any]:
    """Weights by the model's own names; `dtype` None: as they were trained."""
    shards = read_shards(actor)
    weights = {name: _weight(source, shards, actor, model) for name, source in sources.items()}
    return {name: one.to(dtype) if dtype and one.is_floating_point() else one for name, one in weights.items()}


def _weight(name: str, shards: list[Any], actor: Path, model: Any) -> Any:
    """A weight by its name in training, with an adapter merged as PEFT does: W + (B A) alpha / r."""

    def whole(name: str) -> Any:
        return joined(name, [shard[name] for shard in shards])

    layer = name.removesuffix(".base_layer.weight")
    meta = _lora_meta(actor)
    if meta is None or layer + _LORA_A not in shards[0]:
        return whole(name)
    change = whole(layer + _LORA_B) @ whole(layer + _LORA_A)
    if type(model.get_submodule(layer.removeprefix(_PREFIX))).__name__ == "Conv1D":
        change = change.T  # GPT-2's layers store their weights transposed
    return whole(name) + change * (meta["lora_alpha"] / meta["r"])


def _write_piece(model: Any, weights: dict[str, Any], file: Path, *, with_config: bool) -> None:
    """Write a file of weights, and with the first one the model's config."""
    beside = file.with_name(f".{file.name}.tmp")
    with _no_progress_bar():
        model.save_pretrained(beside, state_dict=weights, max_shard_size=2**62)
    (beside / "model.safetensors").replace(file)
    for other in beside.iterdir() if with_config else ():
        other.replace(file.with_name(other.name))
    shutil.rmtree(beside)


def _sizes(file: Path) -> dict[str, int]:
    """The names in a safetensors file, with their bytes."""
    return {name: one["data_offsets"][1] - one["data_offsets"][0] for name, one in tensors_in(file).items()}


def _lora_meta(actor: Path) -> dict[str, Any] | None:
    file = actor / "lora_train_meta.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _copy_rest(source: Path, target: Path) -> None:
    """Copy the tokenizer, the chat template, and code that comes with the model."""
    target.mkdir(parents=True, exist_ok=True)
    if source.resolve() != target.resolve():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_OURS), dirs_exist_ok=True)


@contextmanager
def _no_progress_bar() -> Generator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _readable(folder: Path) -> None:
    # safetensors writes files that only their owner can read
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)
