"""The texts of the progress view: one line per step, and the times of its phases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from turnsmith.text import duration, number

START_PHASES = ("resolving model", "checking", "starting Ray", "importing", "starting workers", "loading model")
"""How the phases before the first step begin, in their order."""


def start_place(phase: str) -> int | None:
    """Which phase of the start this is; None for a phase of a step.

    Example:
        >>> start_place("starting Ray, attempt 2 of 4: the machine is busy"), start_place("generate")
        (2, None)
    """
    return next((place for place, name in enumerate(START_PHASES) if phase.startswith(name)), None)


def phase_times(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Name and seconds of each phase of the step that is long enough to show, the longest first."""
    times = [
        (name[5:], seconds) for name, seconds in metrics.items() if name.startswith("time/") and name != "time/step"
    ]
    known = [(name, float(seconds)) for name, seconds in times if isinstance(seconds, int | float) and seconds >= 0.05]
    return sorted(known, key=lambda item: -item[1])


def outcome_counts(metrics: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Outcomes and their number of episodes, the most frequent first."""
    counts = [(name[9:], count) for name, count in metrics.items() if name.startswith("episodes/")]
    return sorted(((name, int(n)) for name, n in counts if name != "total" and n), key=lambda item: -item[1])


def failure_counts(metrics: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What the failure policy did, and how often: attempts retried, episodes masked, dropped or penalised."""
    return [(name[9:], int(count)) for name, count in metrics.items() if name.startswith("failures/") and count]


def plain_line(metrics: Mapping[str, Any], total_steps: int) -> str:
    """One step as one line of ASCII, for logs.

    Example:
        >>> metrics = {"step": 3, "reward/mean": 0.25, "entropy": 1.5, "time/step": 4.0, "time/generate": 2.5}
        >>> plain_line({**metrics, "episodes/completed": 30, "episodes/turn_limit": 2}, total_steps=40)
        'step  3/40  reward 0.250  entropy 1.50     4.0 s (generate 2.5)  32 episodes: 30 completed, 2 turn_limit'
        >>> plain_line({"step": 4, "episodes/completed": 32, "failures/retried": 1}, total_steps=9)
        'step 4/9  32 episodes: 32 completed; 1 retried'
    """
    step = str(metrics.get("step", "?"))
    parts = [f"step {step.rjust(len(str(total_steps)))}/{total_steps}"]
    if "reward/mean" in metrics:
        parts.append(f"reward {_steady(metrics['reward/mean'])}{_range(metrics)}")
    for name, label in (("entropy", "entropy"), ("kl", "kl"), ("grad_norm", "grad")):
        if metrics.get(name) is not None:
            parts.append(f"{label} {number(metrics[name]):<7}")
    if "time/step" in metrics:
        slowest = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phase_times(metrics)[:3])
        parts.append(f"{duration(metrics['time/step'])}{f' ({slowest})' if slowest else ''}")
    parts.extend(_episodes(metrics))
    return "  ".join(parts)


def evaluation_line(record: Mapping[str, Any]) -> str:
    """One evaluation as one line of ASCII.

    Example:
        >>> found = {
        ...     "reward/mean": 0.5,
        ...     "reward/low": 0.4,
        ...     "reward/high": 0.6,
        ...     "success/mean": 0.25,
        ...     "episodes/total": 8,
        ... }
        >>> evaluation_line({"step": 20, **found, "time/evaluate": 3.0})
        'evaluation after step 20: success 0.250, reward 0.500 (0.400 to 0.600)  8 episodes in 3.0 s'
    """
    when = "before training" if record["step"] == 0 else f"after step {record['step']}"
    found = ", ".join(
        f"{name} {_with_interval(record, name)}" for name in ("success", "reward") if f"{name}/mean" in record
    )
    took = f" in {duration(record['time/evaluate'])}" if "time/evaluate" in record else ""
    return f"evaluation {when}: {found or 'no episode counts'}  {record.get('episodes/total', 0)} episodes{took}"


def _with_interval(record: Mapping[str, Any], name: str) -> str:
    low, high = record.get(f"{name}/low"), record.get(f"{name}/high")
    between = "" if low is None or high is None else f" ({number(low)} to {number(high)})"
    return f"{_steady(record[f'{name}/mean'])}{between}"


def _range(metrics: Mapping[str, Any]) -> str:
    low, high = metrics.get("reward/min"), metrics.get("reward/max")
    return "" if low is None or high is None else f" ({number(low)} to {number(high)})"


def _episodes(metrics: Mapping[str, Any]) -> Iterable[str]:
    counts = outcome_counts(metrics)
    total = metrics.get("episodes/total", sum(count for _, count in counts))
    if counts:
        settled = ", ".join(f"{count} {name}" for name, count in failure_counts(metrics))
        listed = ", ".join(f"{count} {name}" for name, count in counts)
        yield f"{total} episodes: {listed}{f'; {settled}' if settled else ''}"


def _steady(value: Any) -> str:
    """Three decimals always, so that the rewards of many lines stand under each other."""
    return f"{value:.3f}" if isinstance(value, int | float) and math.isfinite(value) else number(value)
