"""Answers "why is my gradient zero?" from what a run recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnsmith.text import number
from turnsmith.viewer.run_view import RunView

ZERO_GRADIENT = "zero_gradient"
"""The name of the warning that says why."""
_ZERO = 1e-9


def why_zero(view: RunView) -> list[str]:
    """The answer in a few lines; none if the gradient never was zero.

    Example:
        >>> from pathlib import Path
        >>> from turnsmith.records.run_folder import RunFolder
        >>> from turnsmith.records.run_state import RunState
        >>> metrics = [
        ...     {"step": 1, "grad_norm": 0.5},
        ...     {"step": 2, "grad_norm": 0.0, "reward/min": 1.0, "reward/max": 1.0},
        ... ]
        >>> view = RunView(RunFolder(Path("runs/game")), RunState.FINISHED, "Game", "tiny", metrics)
        >>> why_zero(view)
        ['It is in 1 of 2 steps, the last being step 2: all episodes of that step got the same reward, 1.']
    """
    ledger = view.run.read_ledger()
    zero = [record for record in view.metrics if _is_zero(record)]
    nothing = [step for step in ledger if step.get("dispatched") and not step.get("trained")]
    empty = [f"Step {nothing[-1]['step']} had nothing to train on: {_left_out(nothing[-1])}."] if nothing else []
    return [*empty, *_of_steps(view, zero, ledger)] if zero else empty


def _of_steps(view: RunView, zero: Sequence[Mapping[str, Any]], ledger: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why the steps that were made with a zero gradient have it."""
    last = int(zero[-1]["step"])
    known = [warning for warning in view.warnings if warning.name == ZERO_GRADIENT]
    count = f"It is in {len(zero)} of {len(view.metrics)} steps, the last being step {last}"
    short = [step for step in ledger if step.get("step") == last and (step.get("masked") or step.get("dropped"))]
    lines = [f"Not all episodes of step {last} were trained on: {_left_out(short[-1])}."] if short else []
    if not known:
        return [f"{count}: {_from_metrics(zero[-1])}.", *lines]
    lines = [f"{count}.", *lines]
    for warning in known:
        until = f" to {warning.until - 1}" if warning.until is not None else " on"
        lines += [f"From step {warning.step}{until}: {warning.what}", f"  what to do: {warning.advice}"]
        lines += [f"  episodes to look at: {', '.join(warning.episodes)}"] if warning.episodes else []
    return lines


def _is_zero(record: Mapping[str, Any]) -> bool:
    norm = record.get("grad_norm")
    if isinstance(norm, int | float) and abs(norm) < _ZERO:
        return True
    ends = [record.get("advantage/min"), record.get("advantage/max")]
    return all(isinstance(end, int | float) and abs(end) < _ZERO for end in ends)


def _left_out(step: Mapping[str, Any]) -> str:
    """What became of a step's episodes that were not trained on, and what went wrong in the first of them."""
    sides = ", ".join(f"{step[side]} {side}" for side in ("masked", "dropped") if step.get(side))
    out = [one for one in step.get("episodes", ()) if one.get("decision") in ("masked", "dropped")]
    why = next((str(one["error"]).partition("\n")[0] for one in out if one.get("error")), "")
    outcomes = ", ".join(f"{count} {name}" for name, count in dict(step.get("outcomes", {})).items())
    return f"of {step['dispatched']} sent off, {sides} ({outcomes}){f'; the first: {why}' if why else ''}".rstrip(".")


def _from_metrics(record: Mapping[str, Any]) -> str:
    """What the metrics alone tell, for runs without warnings."""
    low, high = record.get("reward/min"), record.get("reward/max")
    if low is None or high is None:
        return "no episode of that step could be trained on"
    if low == high:
        return f"all episodes of that step got the same reward, {number(low)}"
    if record.get("groups/constant") is not None and record["groups/constant"] == record.get("groups/total"):
        return "in every group all episodes got the same reward, and episodes are compared within their group"
    if (record.get("clip_fraction") or 0.0) > 0.9:
        return "nearly all tokens were clipped"
    return "every advantage was 0 although the rewards differ; look at that step's episodes"
