"""The progress of a run: a live view in a terminal, one line per step anywhere else.

Knows nothing of training; it is given phases and metrics. It must never stop a run: a terminal that is narrow, closed
or without Unicode costs the view, not the run.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from turnsmith.text import can_draw_live, duration, number, print_line, safe_console, sparkline, wrapped
from turnsmith.trajectory import Outcome


class ProgressView:
    """Shows a run's progress: live in a terminal, as plain lines in a file or pipe.

    Args:
        file: Where to show it; None: standard output.
        live: Whether to draw a live view; None: if `file` is a terminal that can.

    Example:
        >>> view = ProgressView(live=False)
        >>> view.start(total_steps=2, header="tictactoe, model tiny, transformers on cpu")
        tictactoe, model tiny, transformers on cpu
        >>> view.phase("starting Ray")
        starting Ray ...
        >>> view.step({"step": 1, "reward/mean": 0.5, "time/step": 3.0})
        step 1/2  reward 0.500  3.0 s
        >>> view.finish("The model is in runs/tictactoe/checkpoints.")
        The model is in runs/tictactoe/checkpoints.
    """

    def __init__(self, file: TextIO | None = None, *, live: bool | None = None) -> None:
        self._file = file
        self._wants_live = live
        self._live: Live | None = None
        self._panel: Panel | None = None
        self._total_steps = 0
        self._phase = ""
        self._stepped = False
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, total_steps: int, header: str, done: int = 0) -> None:
        """Begin; `header` says in one line what is being trained, `done` how many of the steps were made before."""
        self.close()
        self._total_steps, self._stepped, self._phase = total_steps, False, ""
        live = can_draw_live(self._file or sys.stdout) if self._wants_live is None else self._wants_live
        if not live:
            self._print(header)
            return
        self._panel = Panel(total_steps, header, done)
        console = safe_console(file=self._file)
        # What others print meanwhile goes above the view; four redraws a second keep the clock running.
        self._live = Live(self._panel, console=console, refresh_per_second=4, vertical_overflow="crop")
        self._live.start()
        atexit.register(self.close)  # a run that dies must not leave the terminal without a cursor

    def phase(self, name: str) -> None:
        """Show the current phase, such as `loading model` or `generate`."""
        with self._lock:
            changed, self._phase = name != self._phase, name
            if self._panel is not None:
                self._panel.begin_phase(name)
            elif changed and not self._stepped:  # later, the line of each step has the times of its phases
                self._print(f"{name} ...")

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Show the metrics of a finished step."""
        with self._lock:
            self._stepped = True
            if self._panel is not None:
                self._panel.add_step(metrics)
            else:
                self._print(plain_line(metrics, self._total_steps))

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Show the metrics of an evaluation."""
        with self._lock:
            if self._panel is not None:
                self._panel.add_evaluation(record)
            self._print(evaluation_line(record))

    def note(self, text: str) -> None:
        """Print something that should stay visible, such as a warning."""
        with self._lock:
            width = None if self._live is None else self._live.console.width - 1
            self._print(text if width is None else "\n".join(wrapped(text, width)))

    def finish(self, summary: str = "") -> None:
        """End the view, leave its last state on the screen, and print how the run ended."""
        with self._lock:
            if self._panel is not None:
                self._panel.end()
            self.close()
            if summary:
                self._print(summary)

    def close(self) -> None:
        """Release the terminal. Safe to call at any time and more than once."""
        live, self._live = self._live, None
        self._panel = None
        if live is not None:
            atexit.unregister(self.close)
            try:
                live.stop()
            except (OSError, ValueError):  # the terminal is gone
                pass

    def _print(self, text: str) -> None:
        try:
            if self._live is not None:
                self._live.console.print(Text(text))
            else:
                print_line(text, self._file or sys.stdout)
        except (OSError, ValueError):  # Whoever read the output is gone; the run goes on.
            pass


START_PHASES = ("resolving model", "checking", "starting Ray", "importing", "starting workers", "loading model")
"""How the phases before the first step begin, in their order."""


def start_place(phase: str) -> int | None:
    """Which phase of the start this is; None for a phase of a step.

    Example:
        >>> start_place("starting Ray, attempt 2 of 4: the machine is busy"), start_place("generate")
        (2, None)
    """
    return next((place for place, name in enumerate(START_PHASES) if phase.startswith(name)), None)


def phase_times(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Name and seconds of each phase of the step that is long enough to show, the longest first."""
    times = [
        (name[5:], seconds) for name, seconds in metrics.items() if name.startswith("time/") and name != "time/step"
    ]
    known = [(name, float(seconds)) for name, seconds in times if isinstance(seconds, int | float) and seconds >= 0.05]
    return sorted(known, key=lambda item: -item[1])


def outcome_counts(metrics: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Outcomes and their number of episodes, the most frequent first."""
    counts = [(name[9:], count) for name, count in metrics.items() if name.startswith("episodes/")]
    return sorted(((name, int(n)) for name, n in counts if name != "total" and n), key=lambda item: -item[1])


def failure_counts(metrics: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What the failure policy did, and how often: attempts retried, episodes masked, dropped or penalised."""
    return [(name[9:], int(count)) for name, count in metrics.items() if name.startswith("failures/") and count]


def plain_line(metrics: Mapping[str, Any], total_steps: int) -> str:
    """One step as one line of ASCII, for logs.

    Example:
        >>> metrics = {"step": 3, "reward/mean": 0.25, "entropy": 1.5, "time/step": 4.0, "time/generate": 2.5}
        >>> plain_line({**metrics, "episodes/completed": 30, "episodes/turn_limit": 2}, total_steps=40)
        'step  3/40  reward 0.250  entropy 1.50     4.0 s (generate 2.5)  32 episodes: 30 completed, 2 turn_limit'
        >>> plain_line({"step": 4, "episodes/completed": 32, "failures/retried": 1}, total_steps=9)
        'step 4/9  32 episodes: 32 completed; 1 retried'
    """
    step = str(metrics.get("step", "?"))
    parts = [f"step {step.rjust(len(str(total_steps)))}/{total_steps}"]
    if "reward/mean" in metrics:
        parts.append(f"reward {_steady(metrics['reward/mean'])}{_range(metrics)}")
    for name, label in (("entropy", "entropy"), ("kl", "kl"), ("grad_norm", "grad")):
        if metrics.get(name) is not None:
            parts.append(f"{label} {number(metrics[name]):<7}")
    if "time/step" in metrics:
        slowest = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phase_times(metrics)[:3])
        parts.append(f"{duration(metrics['time/step'])}{f' ({slowest})' if slowest else ''}")
    parts.extend(_episodes(metrics))
    return "  ".join(parts)


def evaluation_line(record: Mapping[str, Any]) -> str:
    """One evaluation as one line of ASCII.

    Example:
        >>> found = {
        ...     "reward/mean": 0.5,
        ...     "reward/low": 0.4,
        ...     "reward/high": 0.6,
        ...     "success/mean": 0.25,
        ...     "episodes/total": 8,
        ... }
        >>> evaluation_line({"step": 20, **found, "time/evaluate": 3.0})
        'evaluation after step 20: success 0.250, reward 0.500 (0.400 to 0.600)  8 episodes in 3.0 s'
    """
    when = "before training" if record["step"] == 0 else f"after step {record['step']}"
    found = ", ".join(
        f"{name} {_with_interval(record, name)}" for name in ("success", "reward") if f"{name}/mean" in record
    )
    took = f" in {duration(record['time/evaluate'])}" if "time/evaluate" in record else ""
    return f"evaluation {when}: {found or 'no episode counts'}  {record.get('episodes/total', 0)} episodes{took}"


def _with_interval(record: Mapping[str, Any], name: str) -> str:
    low, high = record.get(f"{name}/low"), record.get(f"{name}/high")
    between = "" if low is None or high is None else f" ({number(low)} to {number(high)})"
    return f"{_steady(record[f'{name}/mean'])}{between}"


def _range(metrics: Mapping[str, Any]) -> str:
    low, high = metrics.get("reward/min"), metrics.get("reward/max")
    return "" if low is None or high is None else f" ({number(low)} to {number(high)})"


def _episodes(metrics: Mapping[str, Any]) -> Iterable[str]:
    counts = outcome_counts(metrics)
    total = metrics.get("episodes/total", sum(count for _, count in counts))
    if counts:
        settled = ", ".join(f"{count} {name}" for name, count in failure_counts(metrics))
        listed = ", ".join(f"{count} {name}" for name, count in counts)
        yield f"{total} episodes: {listed}{f'; {settled}' if settled else ''}"


def _steady(value: Any) -> str:
    """Three decimals always, so that the rewards of many lines stand under each other."""
    return f"{value:.3f}" if isinstance(value, int | float) and math.isfinite(value) else number(value)


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
