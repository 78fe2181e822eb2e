"""What the progress view says, as plain strings and numbers: one line a step, sparklines, shares of the step's time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"


def number(value: Any) -> str:
    """A number in at most eight characters that a person can compare with the line above.

    Example:
        >>> [number(value) for value in (0.3125, 12.5, 0.0123, -0.00012, 1e-7, 32, 12345.6, float("nan"), None)]
        ['0.312', '12.5', '0.0123', '-1.2e-04', '1.0e-07', '32', '12346', 'nan', '-']
    """
    try:
        value = float(value)
    except (TypeError, ValueError):
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if value == int(value) and size < 1e6:
        return str(int(value))
    if size >= 1e6 or size < 1e-3:
        return f"{value:.1e}"
    if size < 0.1:
        return f"{value:.4f}"
    return f"{value:.{0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    Example:
        >>> duration(0.42), duration(42.3), duration(95), duration(7265)
        ('0.4 s', '42 s', '1:35', '2:01:05')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as a small picture, newest at the right; more values than `width` are averaged into `width` bins.

    Example:
        >>> sparkline([0.0, 0.5, 1.0], width=10), sparkline([2.0, 2.0], width=10), len(sparkline(range(100), width=10))
        ('▁▅█', '▁▁', 10)
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    if len(finite) > width:
        edges = [round(index * len(finite) / width) for index in range(width + 1)]
        finite = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(finite), max(finite) - min(finite)
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1)) if span > 0 else 0] for value in finite)


def phase_times(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Name and seconds of each phase that took time worth showing in this step, the longest first."""
    times = [
        (name[5:], seconds) for name, seconds in metrics.items() if name.startswith("time/") and name != "time/step"
    ]
    known = [(name, float(seconds)) for name, seconds in times if isinstance(seconds, int | float) and seconds >= 0.05]
    return sorted(known, key=lambda item: -item[1])


def outcome_counts(metrics: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Outcome and number of episodes, the most frequent first; outcomes that did not happen are left out."""
    counts = [(name[9:], count) for name, count in metrics.items() if name.startswith("episodes/")]
    return sorted(((name, int(n)) for name, n in counts if name != "total" and n), key=lambda item: -item[1])


def plain_line(metrics: Mapping[str, Any], total_steps: int) -> str:
    """One step as one line of ASCII, for logs.

    Example:
        >>> metrics = {"step": 3, "reward/mean": 0.25, "entropy": 1.5, "time/step": 4.0, "time/generate": 2.5}
        >>> plain_line({**metrics, "episodes/completed": 30, "episodes/turn_limit": 2}, total_steps=40)
        'step  3/40  reward 0.250  entropy 1.50     4.0 s (generate 2.5)  32 episodes: 30 completed, 2 turn_limit'
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


def _range(metrics: Mapping[str, Any]) -> str:
    low, high = metrics.get("reward/min"), metrics.get("reward/max")
    return "" if low is None or high is None else f" ({number(low)} to {number(high)})"


def _episodes(metrics: Mapping[str, Any]) -> Iterable[str]:
    counts = outcome_counts(metrics)
    total = metrics.get("episodes/total", sum(count for _, count in counts))
    if counts:
        yield f"{total} episodes: " + ", ".join(f"{count} {name}" for name, count in counts)


def _steady(value: Any) -> str:
    """Three decimals always, so that the rewards of many lines stand under each other."""
    return f"{value:.3f}" if isinstance(value, int | float) and math.isfinite(value) else number(value)
