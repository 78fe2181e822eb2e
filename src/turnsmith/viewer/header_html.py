"""The top and the foot of a report: what the run is, how it stands, and its settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from typing import Any, cast

from turnsmith.records.run_state import RunState
from turnsmith.text import duration, number
from turnsmith.viewer.run_view import RunView

_KINDS = {
    RunState.RUNNING: "fair",
    RunState.FINISHED: "good",
    RunState.STOPPED: "fair",
    RunState.FAILED: "bad",
    RunState.DIED: "bad",
    RunState.UNCLEAR: "fair",
}
_SAYING = {
    RunState.DIED: "Its process is gone and left no word, as after SIGKILL or a crash of the machine.",
    RunState.UNCLEAR: "No end was recorded.",
}


def header_html(view: RunView) -> str:
    """Name, state, and the figures that one asks for first."""
    about = " · ".join(escape(part) for part in _about(view))
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in _tiles(view)
    )
    said = _SAYING.get(view.state, "")
    note = f'<p class="quiet">{escape(said)}</p>' if said else ""
    error = f'<pre class="error">{escape(view.error[-3000:])}</pre>' if view.error else ""
    return (
        f'<header><h1>{escape(view.name)} <span class="badge {_KINDS[view.state]}">{view.state.value}</span></h1>'
        f'<p class="about">{about}</p>{note}{error}<div class="tiles">{tiles}</div></header>'
    )


def settings_html(view: RunView) -> str:
    """All settings, folded."""
    if not view.settings:
        return ""
    sections = "".join(_section(name, part) for name, part in view.settings.items() if part not in ({}, None))
    return (
        '<section><details class="all-settings"><summary>All settings</summary>'
        f'<div class="settings">{sections}</div></details></section>'
    )


def _section(name: str, part: Any) -> str:
    items = cast("dict[str, Any]", part).items() if isinstance(part, dict) else [("", part)]
    rows = "".join(f"<tr><td>{escape(str(key))}</td><td>{escape(str(value))}</td></tr>" for key, value in items)
    return f"<table><caption>{escape(name)}</caption><tbody>{rows}</tbody></table>"


def _about(view: RunView) -> Iterator[str]:
    if view.environment:
        yield view.environment
    if view.model:
        yield view.model
    if view.is_evaluation:
        yield "evaluation"
    elif view.settings:
        size, group = view.setting("training", "batch_size"), view.setting("training", "group_size")
        yield f"{view.setting('training', 'adv_estimator')}, {size} episodes a step in groups of {group}"
        yield f"learning rate {view.setting('training', 'learning_rate')}"
    if view.created is not None:
        yield time.strftime("%d %b %Y, %H:%M", time.localtime(view.created))


def _tiles(view: RunView) -> Iterator[tuple[str, str]]:
    if view.is_evaluation:
        yield from _evaluation_tiles(view)
    else:
        planned = f" of {view.planned_steps}" if view.planned_steps and view.planned_steps != view.steps else ""
        yield "steps", f"{view.steps}{planned}"
        yield from _from_to(view, "reward", "reward/mean")
        yield from _from_to(view, "success", "success/mean")
        total = sum(int(one.get("episodes/total", 0)) for one in view.metrics)
        yield "episodes", f"{total:,}"
    if view.seconds is not None:
        yield "time", duration(view.seconds)
    if view.is_evaluation and not view.warnings:
        return
    going_on = sum(warning.until is None for warning in view.warnings)
    yield "warnings", f"{len(view.warnings)}" + (f" ({going_on} not over)" if going_on else "")


def _evaluation_tiles(view: RunView) -> Iterator[tuple[str, str]]:
    for label, name in (("reward", "reward/mean"), ("success", "success/mean"), ("episodes", "episodes/total")):
        value = view.last(name)
        if value is not None:
            yield label, number(value)


def _from_to(view: RunView, label: str, name: str) -> Iterator[tuple[str, str]]:
    first = next((one[name] for one in view.metrics if isinstance(one.get(name), int | float)), None)
    last = view.last(name)
    if first is not None and last is not None:
        yield f"{label}, first to last step", f"{number(first)} → {number(last)}" if view.steps > 1 else number(last)
