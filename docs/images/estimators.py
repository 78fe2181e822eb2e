"""Draws estimators.svg from benchmarks/results/estimators.json: reward by episodes trained on, for each estimator.

Run, in the project's folder: python -m docs.images.estimators
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.images.share_plot import SharePlot

from turnsmith.rollout.evaluation.intervals import estimate_mean

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "benchmarks" / "results" / "estimators.json"
WAYS = {
    "grpo": ("GRPO", "#d9480f"),
    "turn": ("GRPO, credit=turn", "#1971c2"),
    "rloo": ("RLOO", "#2f9e44"),
    "ppo": ("PPO", "#7048e8"),
}
LINE_HEIGHT = 17


def draw(result: dict[str, Any]) -> str:
    """The mean over seeds with its interval, for each estimator."""
    readings: list[dict[str, float]] = result["readings"]
    plot = SharePlot()
    counts = sorted(int(key.removeprefix("grpo_at_")) for key in readings[0] if key.startswith("grpo_at_"))
    most = counts[-1]
    plot.x_axis("episodes trained on", {count / most: str(count) for count in counts})
    for place, (way, (name, colour)) in enumerate(WAYS.items()):
        found = [estimate_mean([[one[f"{way}_at_{count}"]] for one in readings]) for count in counts]
        if len(readings) > 1:
            low = [(count / most, max(one.low, 0.0)) for count, one in zip(counts, found, strict=True)]
            high = [(count / most, min(one.high, 1.0)) for count, one in zip(counts, found, strict=True)]
            plot.band(low, high, colour)
        plot.curve("", [(count / most, one.value) for count, one in zip(counts, found, strict=True)], colour)
        plot.text(plot.x(0) + 10, plot.y(1) + 16 + LINE_HEIGHT * place, name, "start", colour)
    return plot.svg("Mean reward by episodes trained on, for four ways of estimating advantages")


if __name__ == "__main__":
    (HERE / "estimators.svg").write_text(draw(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
