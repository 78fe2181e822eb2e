"""Changes one weight in a checkpoint, to see whether the change arrives where tokens are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from turnsmith.check.finding import Finding
from turnsmith.inference.sync.engines import TransformersInferenceEngine
from turnsmith.records.checkpoint_manifest import write_manifest
from turnsmith.records.checkpoints import open_checkpoint, usable_key
from turnsmith.trainer.checkpoints.hugging_face import read_shard, saved_ranks, shard_path
from turnsmith.trajectory import Trajectory

_FACTOR = 1.5
_ADDED = 0.5
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


def sampled_log_probs(episodes: Sequence[Trajectory]) -> list[float]:
    """The engine's log-prob of each episode's first turn."""
    return [sum(one.tokens.log_probs[one.turns[0].start : one.turns[0].stop]) for one in episodes]


def model_log_probs(folder: Path, episodes: Sequence[Trajectory], *, trust_remote_code: bool) -> list[float]:
    """The log-prob of each episode's first turn by the model in a folder, computed here."""
    turns = [(one.tokens.ids, one.turns[0]) for one in episodes]
    with TransformersInferenceEngine(str(folder), trust_remote_code=trust_remote_code) as engine:
        prompts, responses = zip(
            *((list(ids[: turn.start]), list(ids[turn.start : turn.stop])) for ids, turn in turns), strict=True
        )
        return engine.compute_log_probs(prompts, responses).tolist()


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
