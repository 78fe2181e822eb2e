"""Sampling as configured, against the model's own settings."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.generation_config import generation_config
from turnsmith.check.subject import Subject

_OTHERS = ("repetition_penalty", "no_repeat_ngram_size", "min_p", "typical_p", "bad_words_ids", "suppress_tokens")
"""Settings of generation that training does not have."""


async def check_sampling(subject: Subject) -> Finding:
    """Compare the settings, and whether log-probs are those of the distribution that is sampled from."""
    ours, own = subject.config.inference, generation_config(subject.model_path)
    if ours.temperature == 0 and subject.config.training.group_size > 1:
        saw = "inference.temperature=0: the episodes of a group are all the same, so there is nothing to learn from."
        return Finding("failed", saw, "Train with inference.temperature=1; evaluation.temperature may be 0.")
    cut = [f"{name}={value}" for name, value in (("top_p", ours.top_p), ("top_k", ours.top_k)) if _cuts(name, value)]
    if cut:
        saw = f"inference.{' and inference.'.join(cut)}: tokens are sampled from a part of the distribution, but the \
trainer computes its log-probs from all of it."
        fix = "Train with top_p=1 and top_k=-1, or correct for the difference: training.rollout_correction=token."
        status = "warning" if subject.config.training.importance_weights == "none" else "passed"
        return Finding(status, saw, "" if status == "passed" else fix)
    others = [f"{name}={own[name]}" for name in _OTHERS if own.get(name) not in (None, 0, 1.0)]
    if others:
        saw = f"The model's generation_config.json has {', '.join(others)}, with which episodes are not sampled."
        fix = "Nothing, if you serve the model without it too: then it is trained as it is used."
        return Finding("warning", saw, fix)
    differing = [
        f"{name} {own[name]}, trained with {getattr(ours, name)}"
        for name in ("temperature", "top_p", "top_k")
        if name in own and own[name] != getattr(ours, name)
    ]
    said = f" The model recommends {'; '.join(differing)}: evaluate with what you will serve." if differing else ""
    return Finding("passed", f"Log-probs are of the distribution that is sampled from.{said}")


def _cuts(name: str, value: float) -> bool:
    return value < 1 if name == "top_p" else value > 0


SAMPLING = Check(
    "sampling",
    "Compares temperature, top_p and top_k with the trainer's log-probs and the model's generation_config.json.",
    "Log-probs of another distribution than the one sampled from make every importance ratio wrong.",
    check_sampling,
    quick=True,
    plays=False,
)
