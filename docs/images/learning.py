"""Draws learning.svg from benchmarks/results/learning.json: success on held-out problems, its mean and every seed.

Run, in the project's folder: python -m docs.images.learning
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.images.share_plot import GREY, SharePlot

from turnsmith.rollout.evaluation.intervals import estimate_mean

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
COLOUR = "#d9480f"


def counts(figures: dict[str, float]) -> list[int]:
    """After how many episodes a run was evaluated."""
    return sorted(int(key.removeprefix("success_")) for key in figures if key.startswith("success_"))


def mean_curve(readings: list[dict[str, float]]) -> list[tuple[int, float, float, float]]:
    """Episodes trained on, mean success over seeds, and its 95 % interval; for one seed that of its problems."""
    points: list[tuple[int, float, float, float]] = []
    for count in counts(readings[0]):
        if len(readings) == 1:
            one = readings[0]
            points.append((count, one[f"success_{count}"], one[f"low_{count}"], one[f"high_{count}"]))
            continue
        found = estimate_mean([[one[f"success_{count}"]] for one in readings])
        low, high = (found.low, found.high) if found.has_interval else (found.value, found.value)
        points.append((count, found.value, max(low, 0.0), min(high, 1.0)))
    return points


def draw(result: dict[str, Any]) -> str:
    """The plot as SVG."""
    points = mean_curve(result["readings"])
    most = points[-1][0]
    plot = SharePlot()
    plot.x_axis("episodes trained on", {count / most: str(count) for count, *_ in points})
    plot.band([(x / most, low) for x, _, low, _ in points], [(x / most, high) for x, _, _, high in points], COLOUR)
    for figures in result["readings"] if len(result["readings"]) > 1 else []:
        plot.line([(count / most, figures[f"success_{count}"]) for count in counts(figures)], GREY)
    plot.curve(f"{points[-1][1]:.0%}".replace("%", " %"), [(x / most, y) for x, y, *_ in points], COLOUR)
    return plot.svg("Success on held-out problems by episodes trained on: a line for each seed, and their mean")


if __name__ == "__main__":
    picture = draw(json.loads((RESULTS / "learning.json").read_text(encoding="utf-8")))
    (HERE / "learning.svg").write_text(picture, encoding="utf-8")
