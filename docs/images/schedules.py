"""Draws schedules.svg from what `python -m benchmarks.schedules scale ... --save results.jsonl` wrote.

python docs/images/schedules.py results.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 340, 56, 20, 130, 46
COLOURS = {"separate_async": "#d9480f", "colocate_async": "#1971c2", "sync": "#495057"}


def draw(rows: list[dict[str, Any]]) -> str:
    """The plot as SVG: the share of the ideal that each schedule reaches, by `max_staleness`."""
    limits = sorted({row["max_staleness"] for row in rows})

    def x(limit: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * limits.index(limit) / (len(limits) - 1)

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def text(place_x: float, place_y: float, words: str, anchor: str = "middle", colour: str = "#868e96") -> str:
        return f'<text x="{place_x:.1f}" y="{place_y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts: list[str] = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{WIDTH - RIGHT}" stroke="#adb5bd" opacity=".6"/>')
        parts.append(text(LEFT - 8, y(share) + 4, f"{share:.0%}", "end"))
    parts += [text(x(limit), HEIGHT - BOTTOM + 18, "sync" if limit == 0 else str(limit)) for limit in limits]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "training.max_staleness"))
    parts.append(text(WIDTH - RIGHT + 10, y(1) + 4, "ideal", "start"))
    for schedule, colour in COLOURS.items():
        curve = sorted((row["max_staleness"], 1 / row["cost"]) for row in rows if row["schedule"] == schedule)
        points = " ".join(f"{x(limit):.1f},{y(share):.1f}" for limit, share in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x(one):.1f}" cy="{y(share):.1f}" r="3.5" fill="{colour}"/>' for one, share in curve]
        if curve:
            parts.append(text(x(curve[-1][0]) + 10, y(curve[-1][1]) + 4, schedule, "start", colour))
    label = "Share of the ideal number of episodes per second, by schedule and max_staleness"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        f'font-family="system-ui, sans-serif" font-size="13">{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    (HERE / "schedules.svg").write_text(draw(rows), encoding="utf-8")
