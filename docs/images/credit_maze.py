"""Draws credit_maze.svg from the curves that `benchmarks/credit_maze.py` wrote.

python docs/images/credit_maze.py credit_maze.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
BATCH, SMOOTH = 64, 4
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 340, 56, 20, 150, 46
COLOURS = {"turn": "#d9480f", "anchored": "#2b8a3e", "episode": "#495057"}
NAMES = {"turn": "credit = turn", "anchored": "credit = anchored", "episode": "credit = episode"}


def smoothed(shares: list[float]) -> list[float]:
    """Success over the last four steps."""
    return [sum(shares[max(0, end - SMOOTH) : end]) / min(SMOOTH, end) for end in range(1, len(shares) + 1)]


def mean(curves: list[list[float]]) -> list[float]:
    """The mean over seeds; a run that reached its goal and stopped keeps its last value."""
    longest = max(map(len, curves))
    held = [curve + [curve[-1]] * (longest - len(curve)) for curve in curves]
    return [sum(column) / len(held) for column in zip(*held, strict=True)]


def draw(results: dict[str, list[float]]) -> str:
    """The plot as SVG: a thin line for each seed, a thick one for their mean."""
    steps = max(map(len, results.values()))

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def line(curve: list[float], colour: str, width: float, opacity: float) -> str:
        points = " ".join(f"{x(step):.1f},{y(share):.1f}" for step, share in enumerate(curve, 1))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>'

    def text(place_x: float, place_y: float, words: str, anchor: str = "middle", colour: str = "#868e96") -> str:
        return f'<text x="{place_x:.1f}" y="{place_y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    parts: list[str] = []
    for share in (0, 0.25, 0.5, 0.75, 0.9, 1):
        dashes = ' stroke-dasharray="4 3"' if share == 0.9 else ""
        parts.append(f'<path d="M{LEFT} {y(share):.1f}H{WIDTH - RIGHT}" stroke="#adb5bd" opacity=".6"{dashes}/>')
        parts.append(text(LEFT - 8, y(share) + 4, f"{share:.0%}", "end"))
    ticks = range(0, steps * BATCH + 1, 2000)
    parts += [text(x(tick / BATCH), HEIGHT - BOTTOM + 18, f"{tick:,}".replace(",", " ")) for tick in ticks]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "episodes"))
    for credit, colour in COLOURS.items():
        curves = [smoothed(shares) for name, shares in results.items() if name.startswith(f"{credit}/")]
        if not curves:
            continue
        parts += [line(curve, colour, 1, 0.35) for curve in curves]
        average = mean(curves)
        parts.append(line(average, colour, 2.5, 1))
        place = TOP + 24 + 20 * list(COLOURS).index(credit)
        parts.append(text(WIDTH - RIGHT + 10, place, NAMES[credit], "start", colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><title>Share of episodes that get out of the maze</title>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    curves = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (HERE / "credit_maze.svg").write_text(draw(curves), encoding="utf-8")
