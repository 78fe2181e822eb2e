"""Draws learning_episodes.svg and learning_minutes.svg: success on held-out problems, with turnsmith and with TRL.

They come from benchmarks/results/learning.json and learning_trl.json.

Run, in the project's folder: python -m docs.images.learning
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from docs.images.share_plot import GREY, SharePlot

from turnsmith.rollout.evaluation.intervals import estimate_mean

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
COLOUR, TRL_COLOUR = "#d9480f", "#1971c2"


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


def minutes(readings: list[dict[str, float]], count: int) -> float:
    """How long it took to train on so many episodes, in the mean."""
    return fmean(one[f"seconds_{count}"] for one in readings) / 60


def draw(ours: dict[str, Any], trl: dict[str, Any], *, by: str) -> str:
    """The plot as SVG, by `episodes` trained on or by `minutes`: every seed thin, and their mean beside TRL."""
    points, theirs = mean_curve(ours["readings"]), mean_curve(trl["readings"])

    def x(readings: list[dict[str, float]], count: int) -> float:
        return minutes(readings, count) if by == "minutes" else count

    most = max(x(one["readings"], points[-1][0]) for one in (ours, trl))
    place = {count: x(ours["readings"], count) / most for count, *_ in points}
    plot = SharePlot()
    if by == "minutes":
        plot.x_axis("minutes of training", {tick / most: str(tick) for tick in range(0, int(most) + 1, 10)})
    else:
        plot.x_axis("episodes trained on", {where: str(count) for count, where in place.items()})
    low, high = ([(place[count], bound[side]) for count, _, *bound in points] for side in (0, 1))
    plot.band(low, high, COLOUR)
    for figures in ours["readings"] if len(ours["readings"]) > 1 else []:
        plot.line([(x([figures], count) / most, figures[f"success_{count}"]) for count in counts(figures)], GREY)
    below = (-2, 12) if theirs[-1][1] > points[-1][1] else (12, -2)  # so that the names do not overlap
    if by == "minutes":
        below = (4, -8)  # ours ends first, and TRL's line goes on below the name
    plot.curve("TRL", [(x(trl["readings"], count) / most, share) for count, share, *_ in theirs], TRL_COLOUR, below[0])
    plot.curve("turnsmith", [(place[count], share) for count, share, *_ in points], COLOUR, below[1])
    return plot.svg(f"Success on held-out problems by {by}: every seed, their mean with its interval, and TRL")


if __name__ == "__main__":
    files = [
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("learning", "learning_trl")
    ]
    for by in ("episodes", "minutes"):
        (HERE / f"learning_{by}.svg").write_text(draw(*files, by=by), encoding="utf-8")
