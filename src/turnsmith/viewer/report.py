"""The report of a run: one HTML file that needs no network, no server and no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path

from turnsmith.records.files import write_for_user
from turnsmith.records.run_folder import RunFolder
from turnsmith.viewer.curves import Chart, Curves, curves_of
from turnsmith.viewer.episode_html import anchor, episodes_html
from turnsmith.viewer.episode_selection import EpisodeSelection, select_episodes
from turnsmith.viewer.evaluation_html import evaluation_html
from turnsmith.viewer.header_html import header_html, settings_html
from turnsmith.viewer.ledger_totals import LedgerTotals, ledger_html
from turnsmith.viewer.run_view import RunView, read_run
from turnsmith.viewer.svg import COLOURS, WIDTH, chart_svg, x_positions


def write_report(run: RunFolder | str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder, and return its path.

    Raises:
        RecordError: There is no run there, or the file cannot be written.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    return write_for_user(folder.path / "report.html" if out is None else out, report_html(folder))


def report_html(run: RunFolder | str | Path) -> str:
    """The report of a run as HTML.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.25})
        >>> page = report_html(run)
        >>> page.startswith("<!doctype html>"), "Reward" in page, "://" in page
        (True, True, False)
    """
    return view_html(read_run(run))


def view_html(view: RunView) -> str:
    """The report of a run that has been read, except for its episodes."""
    curves = curves_of(view.metrics, view.evaluations)
    selection = select_episodes(view.run, view.warnings)
    body = "\n".join(
        part
        for part in (
            header_html(view),
            _warnings(view, selection),
            ledger_html(LedgerTotals.of(view.ledger)),
            evaluation_html(view, selection.rows) if view.is_evaluation else "",
            "" if view.is_evaluation and len(curves.steps) < 2 else _curves(curves),
            _episodes(selection),
            settings_html(view),
        )
        if part
    )
    return page_html(view.name, body, _data(curves))


def page_html(title: str, body: str, data: str = "") -> str:
    """A whole page with the style and the script of reports; `data` is what the script reads."""
    script = _asset("report.js") if data else ""
    end = f"\n{data}\n<script>{script}</script>" if data else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_policy(script)}\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{_asset('report.css')}</style>\n</head>\n<body>\n<main>\n{body}\n</main>{end}\n</body>\n</html>\n"
    )


def _policy(script: str) -> str:
    """Forbid the browser to fetch anything or to run other scripts, whatever the page contains."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _data(curves: Curves) -> str:
    """The values that the script shows while the pointer is over a chart."""
    points = range(len(curves.steps))
    data = {
        "width": WIDTH,
        "places": x_positions(curves.steps),
        "steps": [str(first) if first == last else f"{first} to {last}" for first, last in curves.steps],
        "charts": [[[series.label(point) for point in points] for series in chart.series] for chart in curves.charts],
    }
    # No text may close the script element early.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="curves">{text}</script>'


def _asset(name: str) -> str:
    return resources.files("turnsmith.viewer").joinpath("assets", name).read_text(encoding="utf-8")


def _warnings(view: RunView, selection: EpisodeSelection) -> str:
    if not view.warnings and view.is_evaluation:
        return ""
    if not view.warnings:
        return '<section><h2>Warnings</h2><p class="quiet">None.</p></section>' if view.metrics else ""
    shown = {(selected.step, selected.trajectory.episode_id) for selected in selection.episodes}
    rows: list[str] = []
    for warning in reversed(view.warnings):
        links = ", ".join(
            f'<a href="#{anchor(warning.step, name)}">{escape(name)}</a>'
            if (warning.step, name) in shown
            else escape(name)
            for name in warning.episodes
        )
        when = "" if not warning.step else f"from {warning.step}"
        when += "" if warning.until is None else f"<br>ended at {warning.until}"
        rows.append(
            f'<tr class="{"over" if warning.until is not None else "going-on"}"><td>{when}</td>'
            f"<td><b>{escape(warning.what)}</b><br>{escape(warning.why)}</td>"
            f"<td>{escape(warning.advice)}</td><td>{links}</td></tr>"
        )
    return (
        '<section><h2>Warnings</h2><div class="wide"><table class="warnings"><thead><tr><th>step</th><th>what, and why '
        f"it matters</th><th>what to do</th><th>episodes</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "</section>"
    )


def _curves(curves: Curves) -> str:
    if not curves.charts:
        return '<section><h2>Curves</h2><p class="quiet">No step has finished yet.</p></section>'
    cards = "\n".join(_card(place, chart, curves) for place, chart in enumerate(curves.charts))
    zero = f'<p class="quiet">Always 0: {escape(", ".join(curves.zero))}.</p>' if curves.zero else ""
    return f'<section><h2>Curves <span id="at"></span></h2><div class="cards">\n{cards}\n</div>{zero}</section>'


def _card(place: int, chart: Chart, curves: Curves) -> str:
    legend = "".join(_legend(chart))
    return (
        f'<figure class="card" data-chart="{place}"><figcaption><b>{escape(chart.title)}</b> '
        f'<span class="note">{escape(chart.note)}</span></figcaption>{chart_svg(chart, curves.steps)}'
        f'<p class="legend">{legend}</p></figure>'
    )


def _legend(chart: Chart) -> Iterator[str]:
    for place, series in enumerate(chart.series):
        last = next(filter(None, map(series.label, reversed(range(len(series.values))))), "")
        yield (
            f'<span><i class="c{place % COLOURS}" data-name="{escape(series.name)}"></i>{escape(series.name)} '
            f'<output data-last="{last}">{last}</output></span>'
        )


def _episodes(selection: EpisodeSelection) -> str:
    damaged = "".join(f'<p class="error">{escape(line)}</p>' for line in selection.unreadable)
    if not selection.episodes:
        return f'<section><h2>Episodes</h2>{damaged}<p class="quiet">No episodes are recorded yet.</p></section>'
    steps = len({row.step for row in selection.rows})
    among = f"{len(selection.rows):,} episodes of {steps} steps" if steps > 1 else f"{len(selection.rows):,} episodes"
    sample = ", a sample of the run" if selection.is_sample else ""
    return (
        f'<section><h2>Episodes to look at</h2><p class="quiet">Selected from {among}{sample}; the run folder has all '
        f"of them in <code>episodes</code>.</p>{damaged}\n{episodes_html(selection.episodes)}</section>"
    )
