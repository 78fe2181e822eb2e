"""Answers "why is my gradient zero?" from what a run recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnsmith.text import number
from turnsmith.viewer.run_view import RunView

ZERO_GRADIENT = "zero_gradient"
"""Name of the warning that gives the reason."""
_ZERO = 1e-9


def explain_zero_gradient(view: RunView) -> list[str]:
    """Explain in a few lines why steps had a zero gradient; empty if none had.

    Example:
        >>> from pathlib import Path
        >>> from turnsmith.records.run_folder import RunFolder
        >>> from turnsmith.records.run_state import RunState
        >>> metrics = [
        ...     {"step": 1, "grad_norm": 0.5},
        ...     {"step": 2, "grad_norm": 0.0, "reward/min": 1.0, "reward/max": 1.0},
        ... ]
        >>> view = RunView(RunFolder(Path("runs/game")), RunState.FINISHED, "Game", "tiny", metrics)
        >>> explain_zero_gradient(view)
        ['It was zero in 1 of 2 steps, most recently in step 2: all episodes got the same reward, 1.']
    """
    ledger = view.ledger
    lines: list[str] = []
    empty = [step for step in ledger if step.get("dispatched") and not step.get("trained")]
    if empty:
        lines.append(f"Step {empty[-1]['step']} had nothing to train on: {_left_out(empty[-1])}.")
    zero = [record for record in view.metrics if _is_zero(record)]
    return [*lines, *_explain_steps(view, zero, ledger)] if zero else lines


def _explain_steps(view: RunView, zero: Sequence[Mapping[str, Any]], ledger: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the steps with a zero gradient had one: from the run's warnings or, without any, from its metrics."""
    last = int(zero[-1]["step"])
    count = f"It was zero in {len(zero)} of {len(view.metrics)} steps, most recently in step {last}"
    warnings = [warning for warning in view.warnings if warning.name == ZERO_GRADIENT]
    lines = [f"{count}." if warnings else f"{count}: {_reason(zero[-1])}."]
    short = [step for step in ledger if step.get("step") == last and (step.get("masked") or step.get("dropped"))]
    lines += [f"Not all episodes of step {last} were trained on: {_left_out(short[-1])}."] if short else []
    for warning in warnings:
        steps = f"From step {warning.step}" if warning.until is None else f"Steps {warning.step} to {warning.until - 1}"
        lines += [f"{steps}: {warning.what}", f"  what to do: {warning.advice}"]
        lines += [f"  episodes to look at: {', '.join(warning.episodes)}"] if warning.episodes else []
    return lines


def _is_zero(record: Mapping[str, Any]) -> bool:
    norm = record.get("grad_norm")
    if isinstance(norm, int | float) and abs(norm) < _ZERO:
        return True
    ends = [record.get("advantage/min"), record.get("advantage/max")]
    return all(isinstance(end, int | float) and abs(end) < _ZERO for end in ends)


def _left_out(step: Mapping[str, Any]) -> str:
    """How many of a step's episodes were masked or dropped, and the first error among them."""
    counts = ", ".join(f"{step[decision]} {decision}" for decision in ("masked", "dropped") if step.get(decision))
    outcomes = ", ".join(f"{count} {name}" for name, count in dict(step.get("outcomes", {})).items())
    episodes = [episode for episode in step.get("episodes", ()) if episode.get("decision") in ("masked", "dropped")]
    error = next((str(episode["error"]).partition("\n")[0] for episode in episodes if episode.get("error")), "")
    sentence = f"of {step.get('dispatched', 0)} episodes, {counts} (outcomes: {outcomes})"
    return f"{sentence}; first error: {error}".rstrip(".") if error else sentence


def _reason(record: Mapping[str, Any]) -> str:
    """The reason as far as a step's metrics show it, for runs without warnings."""
    low, high = record.get("reward/min"), record.get("reward/max")
    if low is None or high is None:
        return "no episode of the step could be trained on"
    if low == high:
        return f"all episodes got the same reward, {number(low)}"
    if record.get("groups/constant") is not None and record["groups/constant"] == record.get("groups/total"):
        return "within every group all episodes got the same reward, so there is nothing to compare"
    if (record.get("clip_fraction") or 0.0) > 0.9:
        return "nearly all tokens were clipped"
    return "every advantage was 0 although the rewards differ; look at the episodes of the step"
