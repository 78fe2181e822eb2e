"""Draws learning.svg from what `benchmarks/learning.py` and `benchmarks/learning_trl.py` wrote.

python docs/images/learning.py turnsmith=learning/ours.jsonl TRL=learning/trl.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from share_plot import SharePlot

from turnsmith.rollout.evaluation.intervals import estimate_proportion

HERE = Path(__file__).parent
COLOURS = ("#d9480f", "#495057")
HELD_OUT = 64
"""Episodes of an evaluation."""


def interval(share: float) -> tuple[float, float]:
    """The 95 % interval of a share of all held-out starts."""
    right = round(share * HELD_OUT)
    found = estimate_proportion([[1.0]] * right + [[0.0]] * (HELD_OUT - right))
    return found.low, found.high


def curve_of(file: str) -> list[tuple[int, float]]:
    """Episodes trained on so far, and success on held-out starts."""
    records = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return [(one["episodes"], one["success"]) for one in records if one["kind"] == "evaluation"]


def draw(curves: dict[str, list[tuple[int, float]]]) -> str:
    """The plot as SVG: a line with its band for each."""
    most = max(episodes for curve in curves.values() for episodes, _ in curve)
    plot = SharePlot()
    plot.x_axis("episodes trained on", {tick / most: str(tick) for tick in range(0, most + 1, 64)})
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        low = [(episodes / most, interval(share)[0]) for episodes, share in curve]
        high = [(episodes / most, interval(share)[1]) for episodes, share in curve]
        plot.band(low, high, colour)
        another_goes_on = curve[-1][0] < most
        plot.curve(name, [(episodes / most, share) for episodes, share in curve], colour, 30 if another_goes_on else 4)
    return plot.svg("Success on held-out starts against episodes trained on")


if __name__ == "__main__":
    curves = {name: curve_of(file) for name, file in (word.split("=") for word in sys.argv[1:])}
    (HERE / "learning.svg").write_text(draw(curves), encoding="utf-8")
