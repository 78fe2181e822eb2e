"""Which curves a run's metrics make: charts of series over steps, with no more points than a screen can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.text import number

MOST_POINTS = 300
"""Points of a curve; more steps than that are put together."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one layer of a stack. None where a step has no value."""

    name: str
    values: list[float | None]
    low: list[float | None] = field(default_factory=list[float | None])
    """The lower edge of the band around the line, if it has one."""
    high: list[float | None] = field(default_factory=list[float | None])

    def told(self, index: int) -> str:
        """The value of a point, with its band, as text; empty where there is none."""
        value = self.values[index]
        if value is None:
            return ""
        low, high = (self.low[index], self.high[index]) if self.low else (None, None)
        return number(value) if low is None or high is None else f"{number(value)} ({number(low)} to {number(high)})"


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture."""

    title: str
    note: str
    """What it shows, in a few words."""
    series: list[Series]
    is_stacked: bool = False
    limits: tuple[float, float] | None = None
    """What the axis must hold at least; None: whatever the values need."""
    is_sparse: bool = False
    """Whether only some steps are meant to have values, so that a line goes on over those that have none."""


@dataclass(frozen=True, slots=True)
class Curves:
    """All charts of a run over the same steps."""

    steps: list[tuple[int, int]]
    """The first and last step of each point."""
    charts: list[Chart]
    zero: list[str]
    """Titles of charts that would only show a line at 0."""


@dataclass(frozen=True, slots=True)
class _Plan:
    title: str
    note: str
    lines: dict[str, str]
    """Label and metric of each line."""
    band: tuple[str, str] | None = None
    limits: tuple[float, float] | None = None


_LINES = (
    _Plan(
        "Reward",
        "mean; band: least to most",
        {"mean": "reward/mean"},
        ("reward/min", "reward/max"),
    ),
    _Plan(
        "Success",
        "share of episodes",
        {"success": "success/mean"},
        ("success/low", "success/high"),
        (0.0, 1.0),
    ),
    _Plan(
        "Evaluation: success",
        "share of episodes; band: 95 % interval",
        {"success": "eval/success/mean"},
        ("eval/success/low", "eval/success/high"),
        (0.0, 1.0),
    ),
    _Plan(
        "Evaluation: reward",
        "mean; band: 95 % interval",
        {"mean": "eval/reward/mean"},
        ("eval/reward/low", "eval/reward/high"),
    ),
    _Plan("Entropy", "of the policy, per token", {"entropy": "entropy"}, limits=(0.0, 0.0)),
    _Plan("Gradient norm", "before clipping", {"norm": "grad_norm"}, limits=(0.0, 0.0)),
    _Plan(
        "KL",
        "of an update; from the reference model",
        {"update": "kl", "in the loss": "kl/loss", "in the reward": "kl/reward"},
    ),
    _Plan(
        "Clipped",
        "share of tokens",
        {"policy": "clip_fraction", "critic": "value_clip_fraction", "correction": "correction/share"},
        limits=(0.0, 0.0),
    ),
    _Plan("Advantage", "least to most of a step's tokens", {"most": "advantage/max", "least": "advantage/min"}),
    _Plan("Loss", "of the policy and of the critic", {"policy": "policy_loss", "critic": "value_loss"}),
    _Plan("Turns", "in an episode, on average", {"turns": "turns/mean"}, limits=(0.0, 0.0)),
    _Plan(
        "Length",
        "tokens of an episode, on average",
        {"prompt": "tokens/prompt", "after it": "tokens/response"},
        limits=(0.0, 0.0),
    ),
    _Plan(
        "Engine against trainer",
        "difference in probability",
        {"mean": "rollout_diff/mean", "most": "rollout_diff/max"},
        limits=(0.0, 0.0),
    ),
    _Plan(
        "Constant groups",
        "all their rewards are the same",
        {"constant": "groups/constant", "all": "groups/total"},
        limits=(0.0, 0.0),
    ),
    _Plan("Cut turns", "share that reached the token limit", {"share": "turns/cut"}, limits=(0.0, 1.0)),
    _Plan(
        "Tool calls",
        "in a step",
        {
            "calls": "tools/calls",
            "errors": "tools/errors",
            "failures": "tools/failures",
            "unreadable": "tools/format_problems",
        },
        limits=(0.0, 0.0),
    ),
)


def curves_of(
    metrics: Sequence[Mapping[str, Any]],
    most_points: int = MOST_POINTS,
    evaluations: Sequence[Mapping[str, Any]] = (),
) -> Curves:
    """The charts that these metrics have values for; of `evaluations`, that of before training is put in front.

    Example:
        >>> curves = curves_of([{"step": 1, "entropy": 2.0, "kl": 0.0}, {"step": 2, "entropy": 1.0, "kl": 0.0}])
        >>> [(chart.title, chart.series[0].values) for chart in curves.charts], curves.zero
        ([('Entropy', [2.0, 1.0])], ['KL'])
    """
    records = [record for record in metrics if isinstance(record.get("step"), int | float)]
    records = [_before(record) for record in evaluations[:1] if record.get("step") == 0] + records
    bins = _bins(records, most_points)
    charts = [_lines(plan, bins) for plan in _LINES]
    charts += [_stack("Time of a step", "seconds, by phase", "time/", "time/step", bins)]
    charts += [_stack("Episodes", "of a step, by outcome", "episodes/", "episodes/total", bins)]
    kept = [chart for chart in charts if chart.series]
    zero = [chart.title for chart in kept if _is_zero(chart)]
    steps = [(int(some[0]["step"]), int(some[-1]["step"])) for some in bins]
    return Curves(steps, [chart for chart in kept if chart.title not in zero], zero)


def _before(evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The evaluation of before training, as a record of step 0; any other is part of its step's record."""
    return {"step": 0} | {f"eval/{name}": value for name, value in evaluation.items()}


def _bins(records: Sequence[Mapping[str, Any]], most: int) -> list[Sequence[Mapping[str, Any]]]:
    """Consecutive steps, as many in each as make at most `most` points."""
    size = max(1, math.ceil(len(records) / most))
    return [records[start : start + size] for start in range(0, len(records), size)]


def _lines(plan: _Plan, bins: list[Sequence[Mapping[str, Any]]]) -> Chart:
    series: list[Series] = []
    for label, metric in plan.lines.items():
        values = [_mean(_numbers(some, metric)) for some in bins]
        if any(value is not None for value in values):
            low, high = ([], []) if plan.band is None else _band(plan.band, bins)
            series.append(Series(label, values, low, high))
    return Chart(plan.title, plan.note, series, limits=plan.limits, is_sparse=plan.title.startswith("Evaluation"))


def _band(
    names: tuple[str, str], bins: list[Sequence[Mapping[str, Any]]]
) -> tuple[list[float | None], list[float | None]]:
    low = [min(_numbers(some, names[0]), default=None) for some in bins]
    high = [max(_numbers(some, names[1]), default=None) for some in bins]
    return low, high


def _stack(title: str, note: str, prefix: str, total: str, bins: list[Sequence[Mapping[str, Any]]]) -> Chart:
    """What stands under a prefix, one layer for each name; the largest lies at the bottom."""
    names = dict.fromkeys(
        name for some in bins for one in some for name in one if name.startswith(prefix) and name != total
    )
    layers: list[Series] = []
    for name in names:
        # A phase or an outcome that a step does not name did not happen in it.
        values = [_mean([_number(one.get(name)) or 0.0 for one in some]) for some in bins]
        if any(values):
            layers.append(Series(name.removeprefix(prefix), values))
    layers.sort(key=lambda layer: -sum(value or 0.0 for value in layer.values))
    return Chart(title, note, layers, is_stacked=True, limits=(0.0, 0.0))


def _is_zero(chart: Chart) -> bool:
    return all(value in (None, 0.0) for series in chart.series for value in (*series.values, *series.low, *series.high))


def _numbers(records: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [value for record in records if (value := _number(record.get(name))) is not None]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
