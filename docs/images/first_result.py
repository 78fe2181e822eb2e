"""Draws first_result.svg, the README's picture, from benchmarks/results/learning.json: a curve, and episodes beside it.

Run, in the project's folder: python -m docs.images.first_result
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from docs.images.learning import mean_curve

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "benchmarks" / "results" / "learning.json"
WIDTH, HEIGHT = 880, 320
LEFT, RIGHT, TOP, BOTTOM = 48, 400, 44, 262
"""Where the axes of the curve are."""
GREY, COLOUR, WRONG = "#868e96", "#d9480f", "#868e96"


class Picture:
    """Parts of an SVG."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", colour: str = GREY, more: str = ""
    ) -> None:
        """Write at these coordinates."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place} fill="{colour}" {more}>{escape(words)}</text>')

    def curve(self, points: list[tuple[int, float, float, float]]) -> None:
        """Success with its interval, over episodes trained on."""
        most = points[-1][0]
        xy = [(LEFT + (RIGHT - LEFT) * x / most, *(BOTTOM - (BOTTOM - TOP) * y for y in ys)) for x, *ys in points]
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = BOTTOM - (BOTTOM - TOP) * share
            self.parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#adb5bd" opacity=".6"/>')
            self.text(LEFT - 8, y + 4, f"{share:.0%}", anchor="end")
        outline = [(x, low) for x, _, low, _ in xy] + [(x, high) for x, _, _, high in reversed(xy)]
        self.parts.append(f'<polygon points="{_points(outline)}" fill="{COLOUR}" opacity=".15"/>')
        line = [(x, y) for x, y, *_ in xy]
        self.parts.append(f'<polyline points="{_points(line)}" fill="none" stroke="{COLOUR}" stroke-width="2.5"/>')
        for (x, y), (episodes, *_) in zip(line, points, strict=True):
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOUR}"/>')
            self.text(x, BOTTOM + 20, str(episodes), anchor="middle")
        self.text((LEFT + RIGHT) / 2, BOTTOM + 42, "episodes trained on", anchor="middle")

    def episode(self, top: float, when: str, told: dict[str, Any]) -> None:
        """A box with the calls and the answer of one episode."""
        colour = COLOUR if told["reward"] else WRONG
        self.parts.append(
            f'<rect x="450" y="{top:.1f}" width="414" height="92" rx="6" fill="none" stroke="{colour}" opacity=".7"/>'
        )
        self.text(464, top + 24, when, colour=colour, more='font-weight="600"')
        self.text(850, top + 24, f"reward {told['reward']:g}", anchor="end", colour=colour, more='font-weight="600"')
        mono = 'font-family="ui-monospace, monospace" font-size="12.5"'
        self.text(464, top + 48, f'calculator("{told["call"]}")  ->  {told["answer"]}', more=mono)
        self.text(464, top + 72, f"answers {told['answer']}", more=mono)


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def draw(result: dict[str, Any]) -> str:
    """The picture as SVG."""
    readings = result["readings"]
    picture = Picture()
    over = f", mean of {len(readings)} seeds" if len(readings) > 1 else ""
    picture.text(LEFT, 22, f"success on {readings[0]['held_out']} held-out problems{over}")
    picture.curve(mean_curve(readings))
    shown = result["episodes"][0]
    picture.text(450, 22, "one of them, before and after")
    told, _, _ = shown["problem"].rpartition(" How many")  # the question has no room
    picture.text(450, 58, told, more='font-style="italic" font-size="11"')
    picture.episode(78, "before", shown["before"])
    picture.episode(186, "after", shown["after"])
    label = "A curve of success over training, and one episode before and after it"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        f'font-family="system-ui, sans-serif" font-size="13">{"".join(picture.parts)}</svg>\n'
    )


if __name__ == "__main__":
    picture = draw(json.loads(RESULT.read_text(encoding="utf-8")))
    (HERE / "first_result.svg").write_text(picture, encoding="utf-8")
