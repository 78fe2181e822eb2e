"""Charts as SVG: lines with bands, and stacked areas. The page's style sheet has the colours, for both themes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from turnsmith.viewer.curves import Chart, Series

WIDTH, HEIGHT = 400, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 22
"""Margins for the axes, equal in all charts, so that a step has the same x in each."""
COLOURS = 8
"""How many colours the style sheet has."""
_MAX_DOTS = 12


def chart_svg(chart: Chart, steps: Sequence[tuple[int, int]]) -> str:
    """The chart as one `<svg>` element; `steps` are the first and last step of each point.

    Example:
        >>> chart = Chart("Entropy", "per token", [Series("entropy", [2.0, None, 1.0])])
        >>> picture = chart_svg(chart, [(1, 1), (2, 2), (3, 3)])
        >>> picture.startswith("<svg"), picture.count("<circle")
        (True, 2)
    """
    low, high = _limits(chart)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    plot = _Plot(steps, low, high)
    parts = [*_axes(plot, ticks), *(_stack(plot, chart) if chart.is_stacked else _lines(plot, chart))]
    label = escape(f"{chart.title}: {chart.note}")
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}'
        f'<line class="cross" x1="0" x2="0" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></svg>'
    )


def x_positions(steps: Sequence[tuple[int, int]]) -> list[float]:
    """The x of each point, in the units of the view box."""
    plot = _Plot(steps, 0.0, 1.0)
    return [round(plot.x(index), 1) for index in range(len(steps))]


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Choose a few round numbers that span `low` to `high`.

    Example:
        >>> nice_ticks(0.0, 0.93), nice_ticks(3.0, 3.0)
        ([0.0, 0.25, 0.5, 0.75, 1.0], [2.5, 2.75, 3.0, 3.25, 3.5])
    """
    if high - low < 1e-300:
        margin = abs(low) / 6 if abs(low) >= 1e-250 else 0.5
        low, high = low - margin, low + margin
    rough = (high - low) / (most - 1)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


class _Plot:
    """The scales of one chart: from steps and values to coordinates."""

    def __init__(self, steps: Sequence[tuple[int, int]], low: float, high: float) -> None:
        self.steps = steps
        self.low, self.high = low, high
        self.first, self.last = (steps[0][0], steps[-1][1]) if steps else (0, 1)

    def x_of(self, step: float) -> float:
        if self.last <= self.first:
            return LEFT + (WIDTH - LEFT - RIGHT) / 2
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def x(self, index: int) -> float:
        first, last = self.steps[index]
        return self.x_of((first + last) / 2)

    def y(self, value: float) -> float:
        return TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _limits(chart: Chart) -> tuple[float, float]:
    if chart.is_stacked:
        sums = [
            sum(layer.values[index] or 0.0 for layer in chart.series) for index in range(len(chart.series[0].values))
        ]
        values = [0.0, *sums]
    else:
        bands = [(series.values, series.low, series.high) for series in chart.series]
        values = [value for band in bands for line in band for value in line if value is not None]
    values += list(chart.limits or ())
    return min(values), max(values)


def _axes(plot: _Plot, ticks: Sequence[float]) -> Iterator[str]:
    for tick in ticks:
        y = plot.y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>'
    for step in _step_ticks(plot.first, plot.last):
        x = plot.x_of(step)
        anchor = "end" if x > WIDTH - RIGHT - 12 else "middle"
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{step}</text>'


def _step_ticks(first: int, last: int) -> list[int]:
    if last <= first:
        return [first]
    steps = sorted({round(tick) for tick in nice_ticks(first, last, most=6)})
    return [first, *(step for step in steps if first + 0.06 * (last - first) < step <= last)]


def _lines(plot: _Plot, chart: Chart) -> Iterator[str]:
    for place, series in enumerate(chart.series):
        colour = place % COLOURS
        if series.low:
            yield f'<path class="band c{colour}" d="{_band(plot, series)}"/>'
        drawn = [index for index, value in enumerate(series.values) if value is not None]
        yield f'<path class="line c{colour}" d="{_line(plot, series.values, drawn, over_gaps=chart.is_sparse)}"/>'
        if len(drawn) <= _MAX_DOTS:
            for index in drawn:
                x, y = plot.x(index), plot.y(series.values[index] or 0.0)
                yield f'<circle class="dot c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>'


def _line(plot: _Plot, values: Sequence[float | None], drawn: Sequence[int], *, over_gaps: bool) -> str:
    parts: list[str] = []
    before: int | None = None
    for index in drawn:
        # Steps without a value break the line, except in charts where most steps have none.
        joins = before is not None and (over_gaps or index == before + 1)
        parts.append(f"{'L' if joins else 'M'}{plot.x(index):.1f} {plot.y(values[index] or 0.0):.1f}")
        before = index
    return "".join(parts)


def _band(plot: _Plot, series: Series) -> str:
    edges = [
        (plot.x(index), plot.y(low), plot.y(high))
        for index, (low, high) in enumerate(zip(series.low, series.high, strict=True))
        if low is not None and high is not None
    ]
    if len(edges) == 1:  # a single point has no width
        x, low, high = edges[0]
        edges = [(x - 3, low, high), (x + 3, low, high)]
    there = [f"{x:.1f} {high:.1f}" for x, _, high in edges]
    back = [f"{x:.1f} {low:.1f}" for x, low, _ in reversed(edges)]
    return f"M{'L'.join(there + back)}Z" if edges else ""


def _stack(plot: _Plot, chart: Chart) -> Iterator[str]:
    """One stepped area for each series, the first at the bottom; each point is as wide as its steps."""
    centres = [plot.x(index) for index in range(len(plot.steps))]
    inner = [(left + right) / 2 for left, right in pairwise(centres)]
    half = (inner[0] - centres[0]) if inner else 20.0
    edges = [max(LEFT, centres[0] - half), *inner, min(WIDTH - RIGHT, centres[-1] + half)]
    bottom = [0.0] * len(centres)
    for place, series in enumerate(chart.series):
        top = [below + (value or 0.0) for below, value in zip(bottom, series.values, strict=True)]
        outline = [*_staircase(plot, edges, top), *reversed(_staircase(plot, edges, bottom))]
        path = f"M{'L'.join(outline)}Z"
        yield f'<path class="layer c{place % COLOURS}" data-name="{escape(series.name)}" d="{path}"/>'
        bottom = top


def _staircase(plot: _Plot, edges: Sequence[float], heights: Sequence[float]) -> list[str]:
    steps = zip(heights, pairwise(edges), strict=True)
    return [f"{x:.1f} {plot.y(height):.1f}" for height, sides in steps for x in sides]
