"""Draws recipes/NAME/curve.svg from benchmarks/results/recipe_NAME.json, for every recipe that was run to its end.

Run, in the project's folder: python -m docs.images.recipes
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.images.share_plot import SharePlot

ROOT = Path(__file__).resolve().parents[2]
COLOUR = "#d9480f"


def draw(result: dict[str, Any]) -> str:
    """The curve of each run that was recorded, with the interval of its evaluations."""
    plot = SharePlot()
    for figures in result["readings"]:
        steps = sorted(int(key.removeprefix("score_")) for key in figures if key.startswith("score_"))
        line, low, high = (
            [(step / steps[-1], figures[f"{name}_{step}"]) for step in steps] for name in ("score", "low", "high")
        )
        plot.band(low, high, COLOUR)
        plot.curve(f"{100 * figures['last']:.0f} %", line, COLOUR)
        plot.x_axis("steps", {step / steps[-1]: str(step) for step in steps})
    return plot.svg("Score on held-out starts by steps of training, with 95 % interval")


if __name__ == "__main__":
    for file in sorted((ROOT / "benchmarks" / "results").glob("recipe_*.json")):
        picture = ROOT / "recipes" / file.stem.removeprefix("recipe_") / "curve.svg"
        picture.write_text(draw(json.loads(file.read_text(encoding="utf-8"))), encoding="utf-8")
