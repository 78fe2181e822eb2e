"""Runs as plain text for a terminal: a list of runs, and one run in a few lines with its warnings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.records.run_folder import RunFolder
from turnsmith.text import duration, number, sparkline
from turnsmith.viewer.ledger_totals import LedgerTotals
from turnsmith.viewer.run_view import RunView, read_run
from turnsmith.viewer.zero_gradient import ZERO_GRADIENT, explain_zero_gradient

_SPARKLINE_WIDTH = 40
_METRICS = {
    "reward": "reward/mean",
    "success": "success/mean",
    "eval reward": "eval/reward/mean",
    "eval success": "eval/success/mean",
    "entropy": "entropy",
    "KL": "kl",
    "gradient norm": "grad_norm",
    "turns": "turns/mean",
    "tokens": "tokens/response",
    "rollout diff": "rollout_diff/mean",
}
_COLUMNS = ("run", "state", "steps", "reward", "warnings", "environment", "model", "started")


def list_runs(folder: str | Path) -> str:
    """List the runs in a folder, one per line, newest last.

    Raises:
        RecordError: There is no such folder, or no run in it.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "Game-20260101-120000")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.5})
        >>> from turnsmith.records.run_state import EventKind
        >>> run.append_event(EventKind.FINISHED)
        >>> print(list_runs(run.path.parent))
        run                   state     steps  reward  warnings  environment  model  started
        Game-20260101-120000  finished  1      0.500   -         Game         -      ...
    """
    path = Path(folder)
    if not path.is_dir():
        raise RecordError(f"There is no folder {path}. Runs are saved in `runs` unless checkpoint.output_dir is set.")
    rows = sorted(_row(entry) for entry in path.iterdir() if RunFolder.is_at(entry))
    if not rows:
        raise RecordError(f"There is no run in {path}.")
    return "\n".join(_align([_COLUMNS, *(cells for _, cells in rows)]))


def describe_runs(folder: str | Path) -> list[dict[str, Any]]:
    """The same runs as `list_runs`, each as a dict.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "Game-20260101-120000")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.5})
        >>> [(run["run"], run["steps"], run["reward"]) for run in describe_runs(run.path.parent)]
        [('Game-20260101-120000', 1, 0.5)]
    """
    list_runs(folder)  # raises if there is no run
    runs: list[dict[str, Any]] = []
    for entry in Path(folder).iterdir():
        if RunFolder.is_at(entry):
            try:
                runs.append(facts_of(read_run(entry)))
            except (RecordError, OSError):  # damaged, or being deleted
                runs.append({"run": entry.name, "path": str(entry), "state": "damaged"})
    return sorted(runs, key=lambda facts: facts.get("started") or 0.0)


def facts_of(view: RunView) -> dict[str, Any]:
    """What the list says about a run, with numbers as numbers and times in seconds since 1970."""
    return {
        "run": view.name,
        "path": str(view.run.path),
        "state": view.state.value,
        "is_evaluation": view.is_evaluation,
        "steps": view.steps,
        "planned_steps": view.planned_steps,
        "reward": view.last("reward/mean"),
        "warnings": view.active_warnings,
        "environment": view.environment,
        "model": view.model,
        "started": view.created,
        "seconds": view.seconds,
        "error": view.error,
    }


def show_run(folder: RunFolder | str | Path) -> str:
    """Describe one run in a few lines: its state, metrics and warnings, and the reason if its gradient is zero.

    Raises:
        RecordError: There is no run there.
    """
    return describe_run(read_run(folder))


def describe_run(view: RunView) -> str:
    """What `show_run` says about a run that has been read."""
    parts = ["\n".join(_head(view)), "\n".join(_numbers(view)), "\n".join(_gradient(view)), *_warnings(view)]
    return "\n\n".join(part for part in parts if part)


def _row(path: Path) -> tuple[float, tuple[str, ...]]:
    """When a run was created, and its line in the list."""
    try:
        view = read_run(path)
    except (RecordError, OSError):  # damaged, or being deleted
        return 0.0, (path.name, "damaged", *("-" for _ in _COLUMNS[2:]))
    started = "-" if view.created is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(view.created))
    return view.created or 0.0, (
        view.name,
        view.state.value,
        "-" if view.is_evaluation else view.progress("/"),
        number(view.last("reward/mean")),
        str(view.active_warnings or "-"),
        view.environment or "-",
        _short_model(view.model) or "-",
        started,
    )


def _short_model(model: str) -> str:
    """The last part of a path; a Hugging Face id unchanged."""
    return Path(model).name if model.count("/") > 1 else model


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[_one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _one_line(text: str) -> str:
    """Replace line ends, so that a text cannot look like two lines."""
    return " ".join(text.splitlines())


def _head(view: RunView) -> Iterator[str]:
    yield _one_line(f"{view.name}: {view.state.value}")
    yield _one_line(" · ".join(filter(None, (view.environment, view.model, view.algorithm))))
    yield _one_line(f"in {view.run.path}")
    lines = [line for line in view.error.splitlines() if line.strip()]
    if lines:
        more = " (full text in error.log)" if len(lines) > 1 else ""
        yield f"error: {lines[-1].strip()}{more}"


def _numbers(view: RunView) -> Iterator[str]:
    rows: list[tuple[str, str]] = []
    if not view.is_evaluation:
        spent = "" if view.seconds is None else f" in {duration(view.seconds)}"
        rows.append(("steps", f"{view.progress(' of ')}{spent}"))
    for label, metric in _METRICS.items():
        values, interval = _values(view, metric), _interval(view, metric)
        if values and min(values) == max(values):
            rows.append((label, f"{number(values[0]):>8}{interval}"))
        elif values:
            curve = sparkline(values, _SPARKLINE_WIDTH)
            rows.append((label, f"{number(values[0]):>8} to {number(values[-1]):<8}  {curve}{interval}"))
    rows.extend(_episodes(view))
    for place, line in enumerate(LedgerTotals.of(view.ledger).lines()):
        rows.append(("" if place else "ledger", line))
    rows.extend(_tools(view))
    rows.extend(_times(view))
    for label, text in rows:
        yield _one_line(f"{label:<15}{text}").rstrip()


def _values(view: RunView, metric: str) -> list[float]:
    if not metric.startswith("eval/"):
        return view.values(metric)
    # The metrics lack the evaluation before the first step; the evaluations' own records have all of them.
    records, name = view.evaluations, metric.removeprefix("eval/")
    return [float(record[name]) for record in records if isinstance(record.get(name), int | float)]


def _interval(view: RunView, metric: str) -> str:
    low, high = (view.last(f"{metric.removesuffix('/mean')}/{end}") for end in ("low", "high"))
    return "" if low is None or high is None else f"  (95 % interval {number(low)} to {number(high)})"


def _episodes(view: RunView) -> Iterator[tuple[str, str]]:
    counts = _sums(view, "episodes/")
    total = counts.pop("total", 0)
    if total:
        outcomes = sorted(counts.items(), key=lambda item: -item[1])
        yield "episodes", f"{total:,.0f}: " + ", ".join(f"{count:,.0f} {outcome}" for outcome, count in outcomes)


def _tools(view: RunView) -> Iterator[tuple[str, str]]:
    counts = _sums(view, "tools/")
    if counts:
        calls = counts.pop("calls", 0)
        problems = ", ".join(f"{count:,.0f} {name.replace('_', ' ')}" for name, count in counts.items())
        yield "tool calls", f"{calls:,.0f}: {problems}"


def _times(view: RunView) -> Iterator[tuple[str, str]]:
    seconds = _sums(view, "time/")
    total = seconds.pop("step", 0)
    if total:
        longest = sorted(seconds.items(), key=lambda item: -item[1])[:4]
        shares = ", ".join(f"{phase} {spent / total:.0%}" for phase, spent in longest)
        yield "step time", f"{duration(total / len(view.values('time/step')))} on average: {shares}"


def _sums(view: RunView, prefix: str) -> dict[str, float]:
    """Sums over all steps of the metrics with a prefix, by the rest of their names."""
    names = dict.fromkeys(name for record in view.metrics for name in record if name.startswith(prefix))
    return {name.removeprefix(prefix): sum(view.values(name)) for name in names}


def _gradient(view: RunView) -> Iterator[str]:
    explanation = explain_zero_gradient(view)
    if explanation:
        yield "Why is the gradient zero?"
        yield from (f"  {line}" for line in explanation)


def _warnings(view: RunView) -> Iterator[str]:
    """All warnings but those about a zero gradient, which `_gradient` explains."""
    for warning in view.warnings:
        if warning.name != ZERO_GRADIENT:
            ended = f"  ended at step {warning.until}" if warning.until is not None else ""
            yield "\n".join(filter(None, [str(replace(warning, until=None)), ended]))
