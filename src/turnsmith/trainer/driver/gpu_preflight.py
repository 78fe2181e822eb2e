"""What a run on GPUs needs and a machine lacks, in sentences, before anything starts. The table is gpu_preflight.yaml.

Only what is certain to fail is refused: of memory, what no run can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from math import inf, prod
from typing import Any

from turnsmith.check.environment.checks.settings import bytes_of_parameter, kept_checkpoints
from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.models import BUILT_MODELS, cache_folder
from turnsmith.inference.models.shape import ModelShape
from turnsmith.records.yaml_text import parse_yaml
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import (
    RayDemand,
    all_nodes,
    episode_workers,
    gpu_share,
    layout_words,
    resolve_device,
    resolve_dtype,
    rollout_layout,
    trainer_ranks,
)
from turnsmith.trainer.config.log_probs import read_model
from turnsmith.trainer.driver.machine_facts import Gpu, Machine, read_machine, read_nodes

TABLE: Mapping[str, Any] = parse_yaml(
    (files("turnsmith.trainer.driver") / "gpu_preflight.yaml").read_text(encoding="utf-8")
)
_DRIVERS = {11: 450_080, 12: 525_060, 13: 580_065}
"""The oldest driver (580.65 as 580,065) by the major version of CUDA, from NVIDIA's table of minor compatibility."""
_STATE, _KEPT, _FROZEN = 16, 12, 4
"""Bytes of a parameter in an update (weights, gradients, two moments), between updates, and under an adapter."""
_ENGINE = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number in the engine."""
_OTHER_FILES = 512
_OFFLOADS = ("offload", "model_dtype")
"""Settings of verl that change what the trainer keeps on a GPU."""


def check_gpus(
    config: ConfigStore, model: str, note: Callable[[str], None], steps: int | None, *, joined: bool = False
) -> None:
    """Check this machine before Ray is started on it, or the nodes of a cluster once it has been joined.

    Raises:
        ConfigError: They lack what the run needs, and `ray.force` is not set.
    """
    if resolve_device(config) == "cpu":
        return
    import ray

    if joined != bool(config.ray.address or ray.is_initialized()):
        return
    folder = config.checkpoint.output_dir
    machines = read_nodes(folder) if joined else [read_machine(folder, starts_ray=True)]
    said = lacks(config, machines, model_shape(model), steps)
    refused = [sentence for sentence, is_refused in said.items() if is_refused and not config.ray.force]
    for sentence in [one for one in said if one not in refused]:
        note(sentence)
    if refused:
        raise ConfigError("\n".join([*refused, "--force (ray.force=true) starts the run all the same."]))


def summary(config: ConfigStore) -> list[str]:
    """What a dry run says of the layout, of what each GPU has to hold, and of what this machine lacks."""
    lines = [layout_words(config)]
    if resolve_device(config) == "cpu":
        return lines
    shape = model_shape(config.model.local_path or config.model.model_name)
    here = read_machine(config.checkpoint.output_dir, starts_ray=True)
    _, needs, _ = _compare(config, replace(here, gpus=here.gpus or (Gpu("", 0.0, 9.9),)), shape, None)
    words = {
        "trainer": "of the trainer's state",
        "weights": "of the engine's weights",
        "cache": "for one longest episode",
    }
    if told := [f"{_gib(needs[code])} {words[code]}" for code in words if code in needs]:
        lines.append(f"each GPU: {', '.join(told)}")
    if not here.driver and not config.ray.address:
        lines.append("this machine has no GPU: what follows is what GPUs would get; for its CPUs, set model.device=cpu")
    said = lacks(config, () if config.ray.address or not here.driver else (here,), shape)
    return [*lines, *(f"{'refused' if is_refused else 'warning'}: {one}" for one, is_refused in said.items())]


def model_shape(model: str) -> ModelShape | None:
    """The sizes of a model in its config.json; None if that is not there, or is of no decoder-only transformer."""
    try:
        found = read_model(str(cache_folder() / BUILT_MODELS[model]) if model in BUILT_MODELS else model)
        from transformers import AutoConfig

        with suppress(ValueError):  # a type that transformers does not know
            found = AutoConfig.for_model(**found).to_dict()  # with the defaults of its class
        return ModelShape.of_config(found)
    except (OSError, ValueError, ConfigError):
        return None


def lacks(
    config: ConfigStore, machines: Sequence[Machine], shape: ModelShape | None, steps: int | None = None
) -> dict[str, bool]:
    """Compare what the run needs with what each machine has.

    Args:
        config: The run's settings.
        machines: Those with GPUs; a cluster may have more than are needed.
        shape: The model's sizes; None: they are not known, and what follows from them is not compared.
        steps: Steps of the run; None: its checkpoints are not counted.

    Returns:
        What is said of the machines, and for each sentence whether the run is refused, not only warned of it.
    """
    said = dict[str, bool]()
    nodes = {"trainer": config.ray.num_nodes, "server": rollout_layout(config)[0]}
    compared = [_compare(config, one, shape, steps) for one in machines if resolve_device(config) == "cuda"]
    for code, row in TABLE.items():
        shares = [needs.get(code, 0.0) / max(has.get(code, inf), 1e-9) for has, needs, _ in compared]
        if max(shares, default=0.0) <= row.get("warned", 1.0):
            continue
        has, needs, words = compared[shares.index(max(shares))]
        words |= {"has": has[code], "needs": needs[code], "gib_has": _gib(has[code]), "gib_needs": _gib(needs[code])}
        fitting = sum(share <= row.get("refused", 1.0) for share in shares)
        said[row["sentence"].format(**words)] = fitting < min(len(shares), nodes.get(row.get("of"), all_nodes(config)))
    return said


def _compare(
    config: ConfigStore, machine: Machine, shape: ModelShape | None, steps: int | None
) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """What a machine has and what the run needs of it, by the names of the table, and words for its sentences.

    Memory is in bytes, a driver's version as one number; what is unknown is left out.
    """
    demand, cuda, dtype, inference = (
        RayDemand.of(config),
        float(machine.cuda or 0),
        resolve_dtype(config),
        config.inference,
    )
    most, oldest, plain = max(demand.gpus, demand.rollout_gpus), _DRIVERS.get(int(cuda), 0), 7.5 if cuda >= 13 else 7.0
    used = sorted(machine.gpus, key=lambda card: card.memory)[-most:]
    card = used[0] if used else Gpu("", 0.0, 0.0)
    has = {"shared-memory": machine.shared_memory, "open-files": machine.open_files, "disk": machine.disk}
    needs = {"shared-memory": 2.0**30 if most > 1 else 0.0, "open-files": _open_files(config)}
    words: dict[str, Any] = {"machine": machine, "card": card, "dtype": dtype, "inference": inference}
    words |= {"checkpoint": config.checkpoint, "driver": f"{oldest // 1000}.{oldest % 1000:02}"}
    words["share"] = gpu_share(config)
    words["instead"] = ", or set model.dtype=float32" * (card.capability >= plain)
    if machine.driver:
        major, minor = machine.driver.split(".")[:2]
        has |= {"torch": cuda, "driver": 1000.0 * int(major) + int(minor)}
        needs |= {"torch": 1.0, "driver": oldest}
    if used:
        has["capability"] = min(one.capability for one in used)
        needs["capability"] = 8.0 if dtype == "bfloat16" else plain
    if shape is None:
        return has, needs, words
    tokens = inference.max_prompt_tokens + inference.max_episode_tokens
    kept = kept_checkpoints(config, steps) if steps is not None else 0
    needs |= {"model-length": tokens, "disk": shape.parameters * bytes_of_parameter(config) * kept}
    has |= {"model-length": shape.positions} if shape.positions else {}
    if used:
        share = gpu_share(config) * card.memory
        weights, cache = (
            _ENGINE[dtype] * size / config.model.tensor_parallel_size for size in (shape.parameters, shape.cache_values)
        )
        update, between = _trainer_bytes(config, shape)
        has |= {"weights": share, "trainer": card.memory, "beside": card.memory}
        has |= {"cache": share - weights} if share > weights else {}
        needs |= {"weights": weights, "cache": cache * tokens, "trainer": update}
        if config.training.schedule != "separate_async" and between + weights < card.memory:
            needs["beside"] = between + share
        words["fitting"] = 1 - between / max(1.0, card.memory) - 0.005
    return has, needs, words


def _trainer_bytes(config: ConfigStore, shape: ModelShape) -> tuple[float, float]:
    """The least that a rank of the trainer keeps on its GPU, in an update and between two; 0: not known."""
    if any(word in str({**config.verl, **config.verl_unchecked}) for word in _OFFLOADS):
        return 0.0, 0.0
    rank, critic = shape.parameters / trainer_ranks(config), get_estimator(config.training.adv_estimator).needs_critic
    state = _FROZEN if config.model.lora_rank else _STATE
    kept = {"none": _FROZEN if config.model.lora_rank else _KEPT, "optimizer": _FROZEN, "all": 0}[
        config.training.offload
    ]
    return rank * (state + _STATE * critic), rank * kept * (1 + critic)


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"


def _open_files(config: ConfigStore) -> float:
    """Files and connections of the process that has most: each other process of the run may have two with it."""
    demand = RayDemand.of(config)
    servers = prod(rollout_layout(config))
    return _OTHER_FILES + 2.0 * (trainer_ranks(config) + 2 * servers + demand.storage_units + episode_workers(config))
