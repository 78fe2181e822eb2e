"""Draws learning.svg from what `benchmarks/learning.py` and `benchmarks/learning_trl.py` wrote.

python docs/images/learning.py turnsmith=learning/ours.jsonl TRL=learning/trl.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from turnsmith.rollout.evaluation.intervals import estimate_proportion

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 340, 56, 20, 110, 46
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

    def x(episodes: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * episodes / most

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def points(pairs: list[tuple[int, float]]) -> str:
        return " ".join(f"{x(episodes):.1f},{y(share):.1f}" for episodes, share in pairs)

    def text(place_x: float, place_y: float, words: str, anchor: str = "middle", colour: str = "#868e96") -> str:
        return f'<text x="{place_x:.1f}" y="{place_y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts: list[str] = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{WIDTH - RIGHT}" stroke="#adb5bd" opacity=".6"/>')
        parts.append(text(LEFT - 8, y(share) + 4, f"{share:.0%}", "end"))
    parts += [text(x(tick), HEIGHT - BOTTOM + 18, str(tick)) for tick in range(0, most + 1, 64)]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "episodes trained on"))
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        low = [(episodes, interval(share)[0]) for episodes, share in curve]
        high = [(episodes, interval(share)[1]) for episodes, share in curve]
        parts.append(f'<polygon points="{points(low)} {points(high[::-1])}" fill="{colour}" opacity=".15"/>')
        parts.append(f'<polyline points="{points(curve)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x(e):.1f}" cy="{y(share):.1f}" r="3.5" fill="{colour}"/>' for e, share in curve]
        end, share = curve[-1]
        below = 4 if end == most else 30  # another line may go on from there
        parts.append(text(x(end) + 10, y(share) + below, name, "start", colour))
    label = "Success on held-out starts against episodes trained on"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        f'font-family="system-ui, sans-serif" font-size="13">{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    curves = {name: curve_of(file) for name, file in (word.split("=") for word in sys.argv[1:])}
    (HERE / "learning.svg").write_text(draw(curves), encoding="utf-8")
