"""A run's metrics as charts: series over steps, with no more points than a screen can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.text import number

_MAX_POINTS = 300
"""The most points of a curve; a longer run's steps are averaged in bins."""
_MAX_VALUE = 1e300
"""Larger values are not drawn, because their sums and differences may be infinite."""
_Bins = list[Sequence[Mapping[str, Any]]]
"""Records of consecutive steps, one sequence for each point of a curve."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one layer of a stack; None where a step has no value."""

    name: str
    values: list[float | None]
    low: list[float | None] = field(default_factory=list[float | None])
    """Lower edge of the band around the line; empty without a band."""
    high: list[float | None] = field(default_factory=list[float | None])

    def label(self, index: int) -> str:
        """The value of a point as text, with its band; empty if there is none."""
        value = self.values[index]
        if value is None:
            return ""
        low, high = (self.low[index], self.high[index]) if self.low else (None, None)
        return number(value) if low is None or high is None else f"{number(value)} ({number(low)} to {number(high)})"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the report."""

    title: str
    note: str
    """What the chart shows, in a few words."""
    series: list[Series]
    is_stacked: bool = False
    limits: tuple[float, float] | None = None
    """Values that the y axis must include."""
    is_sparse: bool = False
    """Whether most steps have no value, so that lines are drawn across the gaps."""


@dataclass(frozen=True, slots=True)
class Curves:
    """All charts of a run over the same steps."""

    steps: list[tuple[int, int]]
    """The first and last step of each point."""
    charts: list[Chart]
    zero: list[str]
    """Titles of the charts left out because all their values are 0."""


@dataclass(frozen=True, slots=True)
class _LineChart:
    title: str
    note: str
    lines: dict[str, str]
    """Metric of each line, by label."""
    band: tuple[str, str] | None = None
    """Metrics of the lower and the upper edge of the band."""
    limits: tuple[float, float] | None = None


_ENVIRONMENT = "environment/"
"""Prefix of the metrics of each environment of a mix."""
_FROM_ZERO = (0.0, 0.0)
_LINE_CHARTS = (
    _LineChart("Reward", "mean; band: min to max", {"mean": "reward/mean"}, ("reward/min", "reward/max")),
    _LineChart(
        "Success", "share of episodes", {"success": "success/mean"}, ("success/low", "success/high"), (0.0, 1.0)
    ),
    _LineChart(
        "Evaluation: success",
        "share of episodes; band: 95 % interval",
        {"success": "eval/success/mean"},
        ("eval/success/low", "eval/success/high"),
        (0.0, 1.0),
    ),
    _LineChart(
        "Evaluation: reward",
        "mean; band: 95 % interval",
        {"mean": "eval/reward/mean"},
        ("eval/reward/low", "eval/reward/high"),
    ),
    _LineChart("Entropy", "of the policy, per token", {"entropy": "entropy"}, limits=_FROM_ZERO),
    _LineChart("Gradient norm", "before clipping", {"norm": "grad_norm"}, limits=_FROM_ZERO),
    _LineChart(
        "KL",
        "of an update, and to the reference model",
        {"update": "kl", "in the loss": "kl/loss", "in the reward": "kl/reward"},
    ),
    _LineChart(
        "Clip fraction",
        "share of tokens",
        {"policy": "clip_fraction", "critic": "value_clip_fraction", "correction": "correction/share"},
        limits=_FROM_ZERO,
    ),
    _LineChart("Advantage", "range over a step's tokens", {"max": "advantage/max", "min": "advantage/min"}),
    _LineChart("Loss", "policy and critic", {"policy": "policy_loss", "critic": "value_loss"}),
    _LineChart("Turns", "per episode, mean", {"turns": "turns/mean"}, limits=_FROM_ZERO),
    _LineChart(
        "Length",
        "tokens per episode, mean",
        {"prompt": "tokens/prompt", "response": "tokens/response"},
        limits=_FROM_ZERO,
    ),
    _LineChart(
        "Rollout against trainer",
        "difference in token probability",
        {"mean": "rollout_diff/mean", "max": "rollout_diff/max"},
        limits=_FROM_ZERO,
    ),
    _LineChart(
        "Constant groups",
        "those whose rewards are all equal",
        {"constant": "groups/constant", "all": "groups/total"},
        limits=_FROM_ZERO,
    ),
    _LineChart("Cut turns", "share that hit the token limit", {"share": "turns/cut"}, limits=(0.0, 1.0)),
    _LineChart(
        "Tool calls",
        "per step",
        {
            "calls": "tools/calls",
            "errors": "tools/errors",
            "failures": "tools/failures",
            "unreadable": "tools/format_problems",
        },
        limits=_FROM_ZERO,
    ),
)


def curves_of(metrics: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]] = ()) -> Curves:
    """The charts that these metrics have values for. They begin with an evaluation before training, if there is one.

    Example:
        >>> curves = curves_of([{"step": 1, "entropy": 2.0, "kl": 0.0}, {"step": 2, "entropy": 1.0, "kl": 0.0}])
        >>> [(chart.title, chart.series[0].values) for chart in curves.charts], curves.zero
        ([('Entropy', [2.0, 1.0])], ['KL'])
    """
    records = [record for record in metrics if isinstance(record.get("step"), int | float)]
    if evaluations and evaluations[0].get("step") == 0:  # later evaluations are part of their step's metrics
        first = {f"eval/{name}": value for name, value in evaluations[0].items()}
        records.insert(0, {"step": 0, **first})
    size = max(1, math.ceil(len(records) / _MAX_POINTS))
    bins: _Bins = [records[start : start + size] for start in range(0, len(records), size)]
    charts = [_lines(plan, bins) for plan in (*_environment_charts(records), *_LINE_CHARTS)]
    charts += [_stack("Step time", "seconds, by phase", "time/", "time/step", bins)]
    charts += [_stack("Episodes", "per step, by outcome", "episodes/", "episodes/total", bins)]
    charts = [chart for chart in charts if chart.series]
    steps = [(int(records[0]["step"]), int(records[-1]["step"])) for records in bins]
    zero = [chart.title for chart in charts if _is_zero(chart)]
    return Curves(steps, [chart for chart in charts if chart.title not in zero], zero)


def _environment_charts(records: Sequence[Mapping[str, Any]]) -> list[_LineChart]:
    """Charts with a line for each environment of a mix."""
    metrics = dict.fromkeys(name for record in records for name in record if name.startswith(_ENVIRONMENT))

    def chart(title: str, note: str, what: str, limits: tuple[float, float] | None = None) -> _LineChart:
        lines = {
            name.removeprefix(_ENVIRONMENT).removesuffix(f"/{what}"): name
            for name in metrics
            if name.endswith(f"/{what}")
        }
        return _LineChart(title, note, lines, limits=limits)

    return [
        chart("Reward by environment", "mean", "reward"),
        chart("Success by environment", "share of episodes", "success", (0.0, 1.0)),
        chart("Episodes by environment", "per step", "episodes", _FROM_ZERO),
    ]


def _lines(plan: _LineChart, bins: _Bins) -> Chart:
    low: list[float | None] = []
    high: list[float | None] = []
    if plan.band is not None:
        low = [min(_numbers(records, plan.band[0]), default=None) for records in bins]
        high = [max(_numbers(records, plan.band[1]), default=None) for records in bins]
    series: list[Series] = []
    for label, metric in plan.lines.items():
        values = [_mean(_numbers(records, metric)) for records in bins]
        if any(value is not None for value in values):
            series.append(Series(label, values, low, high))
    return Chart(plan.title, plan.note, series, limits=plan.limits, is_sparse=plan.title.startswith("Evaluation"))


def _stack(title: str, note: str, prefix: str, total: str, bins: _Bins) -> Chart:
    """One layer for each metric with a prefix, except their total; the largest at the bottom."""
    names = dict.fromkeys(name for records in bins for record in records for name in record if name.startswith(prefix))
    layers: list[Series] = []
    for name in names:
        # A phase or an outcome that a step does not record did not occur in it: 0, not a gap.
        values = [sum(_numbers(records, name)) / len(records) for records in bins]
        if name != total and any(values):
            layers.append(Series(name.removeprefix(prefix), list(values)))
    layers.sort(key=lambda layer: -sum(value or 0.0 for value in layer.values))
    return Chart(title, note, layers, is_stacked=True, limits=_FROM_ZERO)


def _is_zero(chart: Chart) -> bool:
    return all(value in (None, 0.0) for series in chart.series for value in (*series.values, *series.low, *series.high))


def _numbers(records: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    values = [record.get(name) for record in records]
    return [float(value) for value in values if isinstance(value, int | float) and abs(value) <= _MAX_VALUE]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
