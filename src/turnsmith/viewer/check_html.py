"""The findings of `turnsmith check` as one HTML page that needs no network and no other file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from turnsmith.trajectory import Trajectory
from turnsmith.viewer.episode_html import anchor, episodes_html
from turnsmith.viewer.episode_selection import SelectedEpisode
from turnsmith.viewer.report import page_html

_BADGES = {"passed": "good", "warning": "fair", "failed": "bad", "skipped": ""}
_ORDER = ("failed", "warning", "passed", "skipped")


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check and what it found."""

    code: str
    """How it is named on the command line."""
    name: str
    status: str
    """`passed`, `warning`, `failed` or `skipped`."""
    seconds: float
    ran: str
    saw: str
    why: str
    fix: str = ""
    shown: Any = None
    """The evidence: `actions`, `seed`, `earned`, `line` and `test`."""
    episodes: Sequence[Trajectory] = ()


def check_html(title: str, about: str, rows: Sequence[CheckRow]) -> str:
    """The page: what failed first, each with why it matters, what to do, and the episodes that show it.

    Example:
        >>> page = check_html(
        ...     "Game", "no model", [CheckRow("opening", "same start", "failed", 0.1, "Resets.", "Differ.", "Luck.")]
        ... )
        >>> page.startswith("<!doctype html>"), "Differ." in page, "://" in page
        (True, True, False)
    """
    counts = Counter(row.status for row in rows)
    tiles = "".join(f'<div class="tile"><b>{counts[name]}</b><span>{name}</span></div>' for name in _ORDER)
    ordered = sorted(rows, key=lambda row: _ORDER.index(row.status))
    shown = [
        SelectedEpisode(place, episode, [row.name])
        for place, row in enumerate(ordered)
        for episode in _numbered(row.episodes)
    ]
    table = "".join(_row(place, row) for place, row in enumerate(ordered))
    episodes = f"<section><h2>Episodes that show it</h2>\n{episodes_html(shown)}</section>" if shown else ""
    body = (
        f'<header><h1>{escape(title)}</h1><p class="about">{escape(about)}</p>'
        f'<div class="tiles">{tiles}</div></header>\n'
        '<section><h2>Checks</h2><div class="wide"><table class="warnings"><thead><tr><th>result</th>'
        "<th>what was seen, and why it matters</th><th>what to do</th><th>episodes</th></tr></thead>"
        f"<tbody>{table}</tbody></table></div></section>\n{episodes}"
    )
    return page_html(f"check of {title}", body)


def _row(place: int, row: CheckRow) -> str:
    is_found = row.status in ("failed", "warning")
    links = ", ".join(
        f'<a href="#{anchor(place, episode.episode_id)}">{escape(episode.episode_id)}</a>'
        for episode in _numbered(row.episodes)
    )
    why = f"<br>{escape(row.why)}" if is_found else ""
    if row.shown is not None:
        said = " | ".join(map(repr, row.shown.actions[:3]))
        why += f"<br>Shown by <code>{escape(said[:1000])}</code> from seed {row.shown.seed}: {row.shown.earned:g}."
        why += f" Decided at <code>{escape(row.shown.line)}</code>." if row.shown.line else ""
        why += f"<details><summary>a test</summary><pre>{escape(row.shown.test)}</pre></details>"
    return (
        f'<tr class="{"going-on" if is_found else "over"}"><td><span class="badge {_BADGES[row.status]}">{row.status}'
        f'</span></td><td><b>{escape(row.name)}</b> <span class="quiet">{row.seconds:.1f} s. {escape(row.ran)}</span>'
        f"<br>{escape(row.saw)}{why}</td><td>{escape(row.fix)}</td><td>{links}</td></tr>"
    )


def _numbered(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """Two plays of one episode have one id; the second gets another, so that both can be looked at."""
    seen, shown = Counter[str](), list[Trajectory]()
    for episode in episodes:
        seen[episode.episode_id] += 1
        again = seen[episode.episode_id]
        shown.append(episode if again == 1 else replace(episode, episode_id=f"{episode.episode_id}-play-{again}"))
    return shown
