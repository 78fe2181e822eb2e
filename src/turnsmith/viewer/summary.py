"""Runs as plain text for a terminal: a list of them, and one in a few lines with its warnings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from turnsmith.errors import RecordError
from turnsmith.records.run_folder import RunFolder
from turnsmith.text import duration, number, sparkline
from turnsmith.viewer.ledger_totals import LedgerTotals
from turnsmith.viewer.run_view import RunView, read_run
from turnsmith.viewer.why_zero import ZERO_GRADIENT, why_zero

_PICTURE = 40
_ROWS = {
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
_HEAD = ("run", "state", "steps", "reward", "warnings", "environment", "model", "began")


def list_runs(folder: str | Path) -> str:
    """A line for each run in a folder, the newest last.

    Raises:
        RecordError: There is no such folder, or no run in it.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "Game-20260101-120000")
        >>> run.append_metrics({"step": 1, "reward/mean": 0.5})
        >>> run.append_event("finished")
        >>> print(list_runs(run.path.parent))
        run                   state     steps  reward  warnings  environment  model  began
        Game-20260101-120000  finished  1      0.500   -         Game         -      ...
    """
    path = Path(folder)
    if not path.is_dir():
        raise RecordError(f"There is no folder {path}. Runs go to `runs` unless checkpoint.output_dir says otherwise.")
    found = [one for one in path.iterdir() if (one / "run.json").is_file()]
    if not found:
        raise RecordError(f"There is no run in {path}.")
    rows = sorted((_created(one), _cells(one)) for one in found)
    return "\n".join(_aligned([_HEAD, *(cells for _, cells in rows)]))


def show_run(folder: RunFolder | str | Path) -> str:
    """One run in a few lines: how it stands, how its numbers went, why its gradient is zero, its warnings.

    Raises:
        RecordError: There is no run there.
    """
    view = read_run(folder)
    parts = ["\n".join(_head(view)), "\n".join(_numbers(view)), "\n".join(_gradient(view)), *_warnings(view)]
    return "\n\n".join(part for part in parts if part)


def _created(path: Path) -> float:
    try:
        return read_run(path).created or 0.0
    except RecordError:
        return 0.0


def _cells(path: Path) -> tuple[str, ...]:
    try:
        view = read_run(path)
    except RecordError:
        return (path.name, "damaged", *("-" for _ in _HEAD[2:]))
    going_on = sum(warning.until is None for warning in view.warnings)
    began = "-" if view.created is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(view.created))
    return (
        view.name,
        view.state.value,
        "-" if view.is_evaluation else _steps(view, "/"),
        number(view.last("reward/mean")),
        str(going_on) if going_on else "-",
        view.environment or "-",
        _short_model(view.model) or "-",
        began,
    )


def _steps(view: RunView, between: str) -> str:
    planned = view.planned_steps
    return f"{view.steps}{between}{planned}" if planned is not None and planned != view.steps else str(view.steps)


def _short_model(model: str) -> str:
    """The last part of a path; a Hugging Face id as it is."""
    return Path(model).name if model.count("/") > 1 else model


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _head(view: RunView) -> Iterator[str]:
    yield f"{view.name}: {view.state.value}"
    about = [view.environment, view.model]
    if not view.is_evaluation and view.settings:
        size, group = view.setting("training", "batch_size"), view.setting("training", "group_size")
        about.append(f"{view.setting('training', 'adv_estimator')}, {size} episodes a step in groups of {group}")
    yield " · ".join(part for part in about if part)
    yield f"in {view.run.path}"
    lines = [line for line in view.error.splitlines() if line.strip()]
    if lines:
        more = " (full text in error.log)" if len(lines) > 1 else ""
        yield f"error: {lines[-1].strip()}{more}"


def _numbers(view: RunView) -> Iterator[str]:
    rows: list[tuple[str, str]] = []
    if not view.is_evaluation:
        spent = "" if view.seconds is None else f" in {duration(view.seconds)}"
        rows.append(("steps", f"{_steps(view, ' of ')}{spent}"))
    for label, name in _ROWS.items():
        values, interval = _values(view, name), _interval(view, name)
        if values and min(values) == max(values):
            rows.append((label, f"{number(values[0]):>8}{interval}"))
        elif values:
            picture = sparkline(values, _PICTURE)
            rows.append((label, f"{number(values[0]):>8} to {number(values[-1]):<8}  {picture}{interval}"))
    rows.extend(_episodes(view))
    for place, line in enumerate(LedgerTotals.of(view.run.read_ledger()).lines()):
        rows.append(("" if place else "ledger", line))
    rows.extend(_tools(view))
    rows.extend(_times(view))
    for label, text in rows:
        yield f"{label:<15}{text}".rstrip()


def _values(view: RunView, name: str) -> list[float]:
    in_training = name.startswith("eval/")  # of these, the folder has one of before the first step, too
    records, key = (view.evaluations if in_training else view.metrics), name.removeprefix("eval/")
    return [float(one[key]) for one in records if isinstance(one.get(key), int | float)]


def _interval(view: RunView, name: str) -> str:
    low, high = (view.last(f"{name.removesuffix('/mean')}/{end}") for end in ("low", "high"))
    return "" if low is None or high is None else f"  (95 % interval {number(low)} to {number(high)})"


def _episodes(view: RunView) -> Iterator[tuple[str, str]]:
    counts = _sums(view, "episodes/")
    total = counts.pop("total", 0)
    if total:
        yield "episodes", f"{total:,}: " + ", ".join(f"{count:,} {name}" for name, count in counts.most_common())


def _tools(view: RunView) -> Iterator[tuple[str, str]]:
    counts = _sums(view, "tools/")
    if counts:
        wrong = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in counts if name != "calls")
        yield "tool calls", f"{counts['calls']:,}: {wrong}"


def _sums(view: RunView, prefix: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for record in view.metrics:
        for name, value in record.items():
            if name.startswith(prefix) and isinstance(value, int | float):
                counts[name.removeprefix(prefix)] += int(value)
    return counts


def _times(view: RunView) -> Iterator[tuple[str, str]]:
    totals: dict[str, float] = {}
    steps = [one for one in view.metrics if isinstance(one.get("time/step"), int | float)]
    for record in steps:
        for name, value in record.items():
            if name.startswith("time/") and isinstance(value, int | float):
                phase = name.removeprefix("time/")
                totals[phase] = totals.get(phase, 0.0) + value
    whole = totals.pop("step", 0)
    if steps and whole:
        longest = sorted(totals.items(), key=lambda item: -item[1])[:4]
        shares = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in longest)
        yield "step time", f"{duration(whole / len(steps))} on average: {shares}"


def _gradient(view: RunView) -> Iterator[str]:
    answer = why_zero(view)
    if answer:
        yield "Why is the gradient zero?"
        yield from (f"  {line}" for line in answer)


def _warnings(view: RunView) -> Iterator[str]:
    """The others; why the gradient is zero was told already."""
    for warning in view.warnings:
        if warning.name != ZERO_GRADIENT:
            over = f"  over at step {warning.until}" if warning.until is not None else ""
            yield "\n".join(filter(None, [str(replace(warning, until=None)), over]))
