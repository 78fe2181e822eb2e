"""The live view as something rich can draw. Every row is cut to the terminal's width; nothing is ever wrapped."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.text import Text

from turnsmith.text import duration, number, sparkline
from turnsmith.trainer.display.text import START_PHASES, failure_counts, outcome_counts, phase_times, start_place
from turnsmith.trajectory import Outcome

_ROWS = (("entropy", "entropy"), ("kl", "KL"), ("grad_norm", "gradient norm"), ("rollout_diff/max", "rollout diff"))
_EVALUATED = (("eval/success/mean", "eval success"), ("eval/reward/mean", "eval reward"))
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_black")
_BEHAVIOUR = {outcome.value for outcome in Outcome if outcome.is_behaviour}
_BETWEEN = " · "
_LABEL = 15
_NUMBER = 9
_KEPT = 10_000
_TIMED_STEPS = 20


class Panel:
    """Header, progress bar, current phase, curves, time by phase, episodes by outcome."""

    def __init__(self, total_steps: int, header: str, done: int = 0) -> None:
        self._total = total_steps
        self._header = header
        self._began = time.monotonic()
        self._phase = "starting"
        self._phase_began = self._began
        self._ended: float | None = None
        self._done = done
        self._last: dict[str, Any] = {}
        self._history: dict[str, deque[float]] = {}
        self._step_seconds: deque[float] = deque(maxlen=_TIMED_STEPS)

    def begin_phase(self, name: str) -> None:
        """Note what is being done now."""
        if name != self._phase:
            self._phase, self._phase_began = name, time.monotonic()

    def add_step(self, metrics: Mapping[str, Any]) -> None:
        """Take in the metrics of one step."""
        step = metrics.get("step")
        self._done = int(step) if isinstance(step, int | float) and math.isfinite(step) else self._done + 1
        for name in ("reward/mean", *(key for key, _ in _ROWS)):
            value = metrics.get(name)
            if isinstance(value, int | float):
                self._history.setdefault(name, deque(maxlen=_KEPT)).append(float(value))
        if isinstance(metrics.get("time/step"), int | float):
            self._step_seconds.append(float(metrics["time/step"]))
        self._last = dict(metrics)

    def add_evaluation(self, record: Mapping[str, Any]) -> None:
        """Take in what an evaluation found."""
        for name, _ in _EVALUATED:
            value = record.get(name.removeprefix("eval/"))
            if isinstance(value, int | float):
                self._history.setdefault(name, deque(maxlen=_KEPT)).append(float(value))

    def end(self) -> None:
        """Stop the clock."""
        self._ended = time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = max(1, options.max_width - 1)  # The last column stays free: some terminals wrap when it is used.
        for row in self._rows(width):
            row.no_wrap, row.overflow = True, "ellipsis"
            row.truncate(width, overflow="ellipsis")
            yield row

    def _rows(self, width: int) -> Iterator[Text]:
        yield Text("")
        for part in _wrapped(self._header.replace("\n", " "), width):
            yield Text(part, style="bold")
        yield self._progress(width)
        if self._ended is None:
            yield self._row("now", f"{self._phase} {duration(time.monotonic() - self._phase_began)}", "bright_black")
        if not self._last:
            return
        yield Text("")
        yield self._reward(width)
        for name, label in (*_EVALUATED, *_ROWS):
            if name in self._history:
                yield self._curve(name, label, width)
        if self._step_seconds:
            yield from self._times(width)
        if outcome_counts(self._last):
            yield self._episodes()

    def _progress(self, width: int) -> Text:
        now = time.monotonic() if self._ended is None else self._ended
        place = None if self._last else start_place(self._phase)
        done, total = (self._done, self._total) if place is None else (place, len(START_PHASES))
        share = min(1.0, done / total) if total else 1.0
        label = f"step {done}/{total}" if place is None else f"start {done + 1}/{total}"
        tail = f" {share:4.0%}  {duration(now - self._began)}"
        if self._ended is None and self._step_seconds and self._done < self._total:
            pace = sum(self._step_seconds) / len(self._step_seconds)
            tail += f", {duration(pace * (self._total - self._done))} left"
        room = max(0, min(60, width - max(_LABEL, len(label) + 1) - len(tail)))
        full = round(room * share)
        row = Text(label.ljust(_LABEL) if len(label) < _LABEL else f"{label} ")
        return row.append("━" * full, "green").append("─" * (room - full), "bright_black").append(tail)

    def _row(self, label: str, text: str, style: str = "") -> Text:
        return Text(label.ljust(_LABEL), style="bright_black").append(text, style=style or "default")

    def _curve(self, name: str, label: str, width: int, beside: str = "", style: str = "bright_black") -> Text:
        values = self._history[name]
        row = self._row(label, number(values[-1]).ljust(_NUMBER), "" if math.isfinite(values[-1]) else "bold red")
        room = min(60, width - _LABEL - _NUMBER - len(beside))
        return row.append(sparkline(values, room), "cyan").append(beside, style)

    def _reward(self, width: int) -> Text:
        if "reward/mean" not in self._history:
            return self._row("reward", "-")
        low, high, spread = (self._last.get(f"reward/{name}") for name in ("min", "max", "std"))
        if spread == 0:
            note = "  all the same: nothing to learn from" if width >= 80 else "  all the same"
            return self._curve("reward/mean", "reward", width, note, "yellow")
        return self._curve("reward/mean", "reward", width, "" if low is None else f"  {number(low)} to {number(high)}")

    def _times(self, width: int) -> Iterator[Text]:
        total, phases = self._step_seconds[-1], phase_times(self._last)
        room = max(0, min(60, width - _LABEL - _NUMBER))
        bar, legend = self._row("step time", duration(total).ljust(_NUMBER)), self._row("", "")
        for (name, seconds), colour in zip(phases, _COLOURS, strict=False):
            bar.append("█" * round(room * seconds / total if total > 0 else 0), colour)
            label = f"{name} {duration(seconds)}  "
            if len(legend) + len(label) <= width:  # half a name says less than none
                legend.append("■ ", colour).append(label)
        yield bar
        if phases:
            yield legend

    def _episodes(self) -> Text:
        counts = outcome_counts(self._last)
        total = self._last.get("episodes/total", sum(count for _, count in counts))
        row = self._row("episodes", number(total).ljust(_NUMBER))
        for index, (name, count) in enumerate(counts):
            row.append(", " if index else "").append(f"{count} {name}", "default" if name in _BEHAVIOUR else "red")
        for index, (name, count) in enumerate(failure_counts(self._last)):
            row.append(", " if index else "; ").append(f"{count} {name}", "yellow")
        return row


def _wrapped(header: str, width: int) -> list[str]:
    """The header in rows that are cut between its parts, where it has parts; what is still too long is cut later."""
    rows = [""]
    for part in header.split(_BETWEEN):
        joined = f"{rows[-1]}{_BETWEEN}{part}" if rows[-1] else part
        if rows[-1] and len(joined) > width:
            rows.append(part)
        else:
            rows[-1] = joined
    return rows
