"""The top and the bottom of a report: what the run is, its state and key numbers, and its settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from typing import Any, cast

from turnsmith.records.run_state import RunState
from turnsmith.text import duration, number
from turnsmith.viewer.run_view import RunView

_BADGES = {RunState.FINISHED: "good", RunState.FAILED: "bad", RunState.DIED: "bad"}
"""Style of a state's badge; `fair` for all others."""
_STATE_NOTES = {
    RunState.DIED: "The process is gone and recorded no end, as after SIGKILL or a machine crash.",
    RunState.UNCLEAR: "No end is recorded, and the process cannot be checked from this machine.",
}


def header_html(view: RunView) -> str:
    """Name, state and the numbers that people look for first."""
    facts = " · ".join(escape(fact) for fact in _facts(view))
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in _tiles(view)
    )
    note = f'<p class="quiet">{escape(_STATE_NOTES[view.state])}</p>' if view.state in _STATE_NOTES else ""
    error = f'<pre class="error">{escape(view.error[-3000:])}</pre>' if view.error else ""
    badge = f'<span class="badge {_BADGES.get(view.state, "fair")}">{view.state.value}</span>'
    return (
        f'<header><h1>{escape(view.name)} {badge}</h1><p class="about">{facts}</p>'
        f'{note}{error}<div class="tiles">{tiles}</div></header>'
    )


def settings_html(view: RunView) -> str:
    """All settings, folded."""
    if not view.settings:
        return ""
    sections = "".join(_section(name, values) for name, values in view.settings.items() if values not in ({}, None))
    return (
        '<section><details class="all-settings"><summary>All settings</summary>'
        f'<div class="settings">{sections}</div></details></section>'
    )


def _section(name: str, values: Any) -> str:
    items = cast("dict[str, Any]", values).items() if isinstance(values, dict) else [("", values)]
    rows = "".join(f"<tr><td>{escape(str(key))}</td><td>{escape(str(value))}</td></tr>" for key, value in items)
    return f"<table><caption>{escape(name)}</caption><tbody>{rows}</tbody></table>"


def _facts(view: RunView) -> Iterator[str]:
    yield from filter(None, (view.environment, view.model, "evaluation" if view.is_evaluation else view.algorithm))
    if view.algorithm:
        yield f"learning rate {view.setting('training', 'learning_rate')}"
    if view.created is not None:
        yield time.strftime("%d %b %Y, %H:%M", time.localtime(view.created))


def _tiles(view: RunView) -> Iterator[tuple[str, str]]:
    if view.is_evaluation:
        metrics = {"reward": "reward/mean", "success": "success/mean", "episodes": "episodes/total"}
        values = {label: view.last(metric) for label, metric in metrics.items()}
        yield from ((label, number(value)) for label, value in values.items() if value is not None)
    else:
        yield "steps", view.progress(" of ")
        yield from _first_to_last(view, "reward", "reward/mean")
        yield from _first_to_last(view, "success", "success/mean")
        yield "episodes", f"{sum(view.values('episodes/total')):,.0f}"
    if view.seconds is not None:
        yield "time", duration(view.seconds)
    if view.warnings or not view.is_evaluation:
        active = f" ({view.active_warnings} active)" if view.active_warnings else ""
        yield "warnings", f"{len(view.warnings)}{active}"


def _first_to_last(view: RunView, label: str, metric: str) -> Iterator[tuple[str, str]]:
    values = view.values(metric)
    if values:
        first = f"{number(values[0])} → " if view.steps > 1 else ""
        yield f"{label}, first to last step", f"{first}{number(values[-1])}"
