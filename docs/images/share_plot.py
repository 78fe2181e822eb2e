"""A plot of shares from 0 to 1, as SVG: what several of our pictures have in common."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 340, 56, 20, 130, 46
GREY = "#868e96"


class SharePlot:
    """Axes, curves and words; places on the x axis are shares of its length."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = self.y(share)
            self._parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#adb5bd" opacity=".6"/>')
            self.text(LEFT - 8, y + 4, f"{share:.0%}", "end")

    def x(self, place: float) -> float:
        """The x coordinate of a place."""
        return LEFT + (WIDTH - LEFT - RIGHT) * place

    def y(self, share: float) -> float:
        """The y coordinate of a share."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def text(self, x: float, y: float, words: str, anchor: str = "middle", colour: str = GREY) -> None:
        """Write at these coordinates."""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>')

    def x_axis(self, label: str, ticks: dict[float, str]) -> None:
        """Label the x axis, and these places on it."""
        for place, words in ticks.items():
            self.text(self.x(place), HEIGHT - BOTTOM + 18, words)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, label)

    def band(self, low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], colour: str) -> None:
        """Fill what is between two curves."""
        outline = self._points([*low, *reversed(high)])
        self._parts.append(f'<polygon points="{outline}" fill="{colour}" opacity=".15"/>')

    def curve(self, name: str, points: Sequence[tuple[float, float]], colour: str, below: float = 4) -> None:
        """Draw a line through these points, with its name at its end."""
        line = self._points(points)
        self._parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        for place, share in points:
            self._parts.append(f'<circle cx="{self.x(place):.1f}" cy="{self.y(share):.1f}" r="3.5" fill="{colour}"/>')
        end, share = points[-1]
        self.text(self.x(end) + 10, self.y(share) + below, name, "start", colour)

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw a thin line, one of many."""
        line = self._points(points)
        self._parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1" opacity=".8"/>')

    def svg(self, label: str) -> str:
        """The picture; the label is for those who can't see it."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
            f'font-family="system-ui, sans-serif" font-size="13">{"".join(self._parts)}</svg>\n'
        )

    def _points(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(place):.1f},{self.y(share):.1f}" for place, share in points)
