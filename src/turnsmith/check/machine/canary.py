"""Changes one weight in a checkpoint, to see whether the change arrives where tokens are sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from turnsmith.check.finding import Finding
from turnsmith.inference.sync.engines import TransformersInferenceEngine
from turnsmith.records.checkpoint_manifest import write_manifest
from turnsmith.records.checkpoints import open_checkpoint, usable_key
from turnsmith.trainer.checkpoints.hugging_face import read_shard, saved_ranks, shard_path
from turnsmith.trajectory import Trajectory

_FACTOR = 1.5
_ADDED = 0.5
_ROUNDINGS = 2.0
"""Largest difference between engine and trainer, as a multiple of how far their dtype alone moves log-probs."""
_NEAR = 0.25
"""Largest distance of the engine's log-probs from the changed model's, as a share of how far the change moves them."""


def perturb_checkpoint(checkpoint: Path) -> str:
    """Change one weight of the model in a checkpoint's files, on every rank; return its name.

    With LoRA, a number is added to the last `lora_B`, because it starts at 0. Otherwise the last normalization before
    the output is scaled. Both move all log-probs.
    """
    import torch

    saved = open_checkpoint(checkpoint, trust=True)
    part = checkpoint / "actor"
    ranks = saved_ranks(part)
    name = ""
    for rank in range(ranks):
        path = shard_path(part, ranks, rank)
        shard = read_shard(path)
        name = name or _choose(list(shard))
        weight = shard[name]
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        local.add_(_ADDED) if "lora_B" in name else local.mul_(_FACTOR)
        torch.save(shard, changed := path.with_suffix(".changed"))  # the other weights are mapped from the old file
        changed.replace(path)
    write_manifest(checkpoint, saved.step, usable_key())
    return name


def _choose(names: list[str]) -> str:
    """The weight to change.

    Example:
        >>> _choose(["model.layers.0.input_layernorm.weight", "model.norm.weight", "lm_head.weight"])
        'model.norm.weight'
    """
    adapters = [name for name in names if "lora_B" in name]
    norms = [name for name in names if name.endswith("norm.weight") and ".layers." not in name]
    return (adapters or norms or [names[-1]])[-1]


def sampled_log_probs(
    episodes: Sequence[Trajectory], log_probs: Sequence[Sequence[float]] | None = None
) -> list[float]:
    """The log-probs of all sampled tokens: the engine's, or others, given for those after each prompt."""
    found = list[float]()
    for place, one in enumerate(episodes):
        first = one.tokens.prompt_length
        theirs = one.tokens.log_probs[first:] if log_probs is None else log_probs[place]
        found += [log_prob for log_prob, is_sampled in zip(theirs, one.tokens.mask[first:], strict=True) if is_sampled]
    return found


def model_log_probs(
    folder: str | Path, episodes: Sequence[Trajectory], *, trust_remote_code: bool, dtype: str = "float32"
) -> list[float]:
    """The same by the model in a folder, computed here."""
    with TransformersInferenceEngine(str(folder), dtype=dtype, trust_remote_code=trust_remote_code) as engine:
        splits = [(list(one.tokens.ids), one.tokens.prompt_length) for one in episodes]
        return sampled_log_probs(episodes, [engine.run(engine.engine.score(ids[:n], ids[n:])) for ids, n in splits])


def spread(some: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """How far log-probs of the same tokens are apart: in the mean, and what a tenth of the tokens exceeds."""
    apart = np.abs(np.subtract(some, others))
    return {"tokens": len(apart), "mean": float(apart.mean()), "q90": float(np.quantile(apart, 0.9))}


def judge_agreement(found: Mapping[str, float], rounding: Mapping[str, float], dtype: str) -> Finding:
    """Whether engine and trainer differ by no more than two ways to compute in a dtype do.

    Args:
        found: The spread between the engine's and the trainer's log-probs.
        rounding: The spread between float32 and the dtype, both computed in one way.
        dtype: The dtype.

    Example:
        >>> rounding = {"tokens": 128, "mean": 0.01, "q90": 0.02}
        >>> judge_agreement({"tokens": 128, "mean": 0.012, "q90": 0.025}, rounding, "bfloat16").saw
        'log-probs of engine and trainer differ by 0.012 (90 % by at most 0.025), 1.2 times what bfloat16 rounds'
    """
    times = max(found[name] / rounding[name] for name in ("mean", "q90"))
    saw = f"log-probs of engine and trainer differ by {found['mean']:.2g} (90 % by at most {found['q90']:.2g}), \
{times:.2g} times what {dtype} rounds"
    if times <= _ROUNDINGS:
        return Finding("passed", saw)
    fix = (
        "They do not have the same weights, or compute differently: compare their dtypes, temperature, norms, RoPE and \
adapters."
    )
    return Finding("failed", f"The {saw} (at most {_ROUNDINGS:g}).", fix)


def judge_weights(weight: str, engine: Sequence[float], before: Sequence[float], changed: Sequence[float]) -> Finding:
    """Whether the engine has the changed weight.

    Args:
        weight: Its name.
        engine: Log-probs of some texts that the engine sampled after the change.
        before: Log-probs of the same texts by the model before the change.
        changed: Log-probs of the same texts by the changed model.

    Example:
        >>> judge_weights("model.norm.weight", engine=[-3.01, -4.0], before=[-2.0, -3.0], changed=[-3.0, -4.0]).saw
        "model.norm.weight changed: log-probs moved by 1, the engine's are within 0.005"
    """
    moved = fmean(abs(new - old) for new, old in zip(changed, before, strict=True))
    off = fmean(abs(new - sampled) for new, sampled in zip(changed, engine, strict=True))
    if not off <= _NEAR * moved:
        saw = f"{weight} was changed, which moves log-probs by {moved:.2g}, but the engine's are {off:.2g} away from \
those of the changed model: the engine did not get the new weight."
        return Finding("failed", saw, "Report this, with the versions that `turnsmith check --machine --json` writes.")
    saw = f"{weight} changed: log-probs moved by {moved:.2g}, the engine's are within {off:.1g}"
    return Finding("passed", saw)
