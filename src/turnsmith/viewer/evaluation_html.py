"""The result of an evaluation as HTML: means with intervals, a comparison, and histograms of rewards and outcomes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from turnsmith.text import number
from turnsmith.viewer.episode_selection import EpisodeRow
from turnsmith.viewer.run_view import RunView

_BARS = 12


def evaluation_html(view: RunView, rows: Sequence[EpisodeRow]) -> str:
    """The result of an evaluation."""
    record = view.metrics[-1] if view.metrics else {}
    table = "".join(
        f"<tr><td>{escape(name)}</td><td><b>{value}</b></td><td>{interval}</td></tr>"
        for name, value, interval in _results(record)
    )
    if not table:
        return '<section><h2>Result</h2><p class="quiet">No episode has been counted yet.</p></section>'
    outcomes = Counter(row.outcome for row in rows)
    counted = [row for row in rows if row.counts]
    return (
        '<section><h2>Result</h2><div class="cards"><figure class="card"><figcaption><b>Means</b> '
        '<span class="note">with 95 % intervals</span></figcaption>'
        f'<table class="result"><tbody>{table}</tbody></table></figure>'
        f"{_bars('Outcomes', 'how the episodes ended', outcomes.most_common())}"
        f"{_bars('Rewards', 'episodes by reward', _histogram([row.reward for row in counted]))}"
        f"{_bars('Turns', 'episodes by turns', _histogram([row.num_turns for row in counted]))}</div></section>"
    )


def _results(record: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Label, value and interval of each row."""
    names = {"reward": "reward/mean", "success": "success/mean"}
    names |= {name: name for name in record if re.fullmatch(r"pass@\d+", name)}
    for name, metric in names.items():
        if isinstance(record.get(metric), int | float):
            yield name, number(record[metric]), _interval(record, name)
    for name in ("reward", "success"):
        change, p = record.get(f"compare/{name}"), record.get(f"compare/{name}/p")
        if isinstance(change, int | float):
            label = f"{name}, change from {record.get('compare/run', 'the earlier run')}"
            p_value = f" (p = {number(p)})" if isinstance(p, int | float) else ""
            sign = "+" if change > 0 else ""
            yield label, f"{sign}{number(change)}", _interval(record, f"compare/{name}") + p_value
    labels = {
        "turns": "turns/mean",
        "tokens by the model": "tokens/model",
        "tokens after the prompt": "tokens/response",
    }
    for label, metric in labels.items():
        if isinstance(record.get(metric), int | float):
            yield label, number(record[metric]), ""


def _interval(record: dict[str, Any], name: str) -> str:
    low, high = record.get(f"{name}/low"), record.get(f"{name}/high")
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


def _histogram(values: Sequence[float]) -> list[tuple[str, int]]:
    """Values with their counts if there are few different ones, else ranges of equal width with theirs."""
    if len(set(values)) <= _BARS:
        return [(number(value), count) for value, count in sorted(Counter(values).items())]
    low, high = min(values), max(values)
    width = (high - low) / _BARS
    counts = Counter(min(_BARS - 1, int((value - low) / width)) for value in values)
    return [
        (f"{number(low + place * width)} to {number(low + (place + 1) * width)}", counts[place])
        for place in range(_BARS)
    ]


def _bars(title: str, note: str, counts: Iterable[tuple[str, int]]) -> str:
    listed = list(counts)
    most = max((count for _, count in listed), default=0)
    rows = "".join(
        f"<tr><td>{escape(label)}</td><td>{count}</td>"
        f'<td><div class="bar" style="width:{100 * count / most:.1f}%"></div></td></tr>'
        for label, count in listed
    )
    return (
        f'<figure class="card"><figcaption><b>{title}</b> <span class="note">{note}</span></figcaption>'
        f'<table class="bars"><tbody>{rows}</tbody></table></figure>'
    )
