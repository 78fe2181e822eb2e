"""Draws schedules.svg from what `python -m benchmarks.schedules scale ... --save results.jsonl` wrote.

python docs/images/schedules.py results.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from share_plot import SharePlot

HERE = Path(__file__).parent
COLOURS = {"separate_async": "#d9480f", "colocate_async": "#1971c2", "sync": "#495057"}


def draw(rows: list[dict[str, Any]]) -> str:
    """The plot as SVG: the share of the ideal that each schedule reaches, by `max_staleness`."""
    limits = sorted({row["max_staleness"] for row in rows})
    place = {limit: number / (len(limits) - 1) for number, limit in enumerate(limits)}
    plot = SharePlot()
    plot.x_axis("training.max_staleness", {place[limit]: str(limit) if limit else "sync" for limit in limits})
    plot.text(plot.x(1) + 10, plot.y(1) + 4, "ideal", "start")
    for schedule, colour in COLOURS.items():
        curve = sorted((place[row["max_staleness"]], 1 / row["cost"]) for row in rows if row["schedule"] == schedule)
        plot.curve(schedule, curve, colour)
    return plot.svg("Share of the ideal number of episodes per second, by schedule and max_staleness")


if __name__ == "__main__":
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    (HERE / "schedules.svg").write_text(draw(rows), encoding="utf-8")
