"""Draws schedules.svg from benchmarks/results/schedules_scale.json: the share of the ideal that each schedule reaches.

Run, in the project's folder: python -m docs.images.schedules
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.images.share_plot import SharePlot

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "benchmarks" / "results" / "schedules_scale.json"
COLOURS = {"separate_async": "#d9480f", "colocate_async": "#1971c2", "sync": "#495057"}


def draw(result: dict[str, Any]) -> str:
    """The plot as SVG, by `max_staleness`."""
    costs = {key: found for key, found in result["readings"][0].items() if key.endswith("_cost")}
    rows = [(*key.removesuffix("_cost").rsplit("_", 1), cost) for key, cost in costs.items()]
    limits = sorted({int(limit) for _, limit, _ in rows})
    place = {limit: number / (len(limits) - 1) for number, limit in enumerate(limits)}
    plot = SharePlot()
    plot.x_axis("training.max_staleness", {place[limit]: str(limit) if limit else "sync" for limit in limits})
    plot.text(plot.x(1) + 10, plot.y(1) + 4, "ideal", "start")
    for schedule, colour in COLOURS.items():
        curve = sorted((place[int(limit)], 1 / cost) for name, limit, cost in rows if name == schedule)
        plot.curve(schedule, curve, colour)
    return plot.svg("Share of the ideal number of episodes per second, by schedule and max_staleness")


if __name__ == "__main__":
    (HERE / "schedules.svg").write_text(draw(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
