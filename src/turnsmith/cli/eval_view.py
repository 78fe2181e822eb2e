"""The display of an evaluation: a live table in a terminal, a few lines anywhere else, and the result at the end."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnsmith.cli.engine import backend_name, model_name_or_path
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.episode_report import refusal_warning
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.intervals import Estimate, PairedTest
from turnsmith.rollout.evaluation.result import Comparison, EvaluationResult
from turnsmith.text import can_draw_live, duration, number, print_line, safe_console
from turnsmith.trajectory import Trajectory

_LOG_WIDTH = 120
_LOG_LINES = 10
"""The most progress lines that are written to a log."""


def evaluation_header(spec: EnvironmentSpec, config: ConfigStore, plan: EvaluationPlan) -> str:
    """One line that says what is evaluated."""
    starts = plan.episodes // plan.samples
    split = f" ({starts} starts, {plan.samples} each)" if plan.samples > 1 else ""
    return f"{spec.name} · {model_name_or_path(config)} · {backend_name(config)} · {plan.episodes} episodes{split}"


class EvaluationView:
    """Shows an evaluation while it runs. If the terminal goes away, the evaluation continues without the display.

    Args:
        plan: The episodes to run.
        header: One line that describes the evaluation.
        file: Where to show it; None is standard output.
        live: Whether to draw a live table; None draws one if `file` is a terminal that can.
    """

    def __init__(
        self, plan: EvaluationPlan, header: str, file: TextIO | None = None, *, live: bool | None = None
    ) -> None:
        self.plan, self.header = plan, header
        self.finished: list[Trajectory] = []
        """The episodes that have ended, in that order. The thread that runs the episodes appends to it."""
        self._file = file or sys.stdout
        self._began = time.perf_counter()
        self._is_live = can_draw_live(self._file) if live is None else live
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._print(self.header)
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except (OSError, ValueError):  # the terminal is gone
                pass

    def note(self, text: str) -> None:
        """Say something before the episodes begin."""
        self._print(text)

    def show_loading(self) -> None:
        """Say that the model is being loaded. The live table starts later, because engines print while they load."""
        self._print("loading the model ...")

    def start(self) -> None:
        """Start the clock and the live table."""
        self._began = time.perf_counter()
        if self._is_live:
            console = safe_console(file=self._file)
            self._live = Live(
                get_renderable=lambda: self.render(console.width),
                console=console,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()

    def add(self, trajectory: Trajectory) -> None:
        """Add an episode that has ended."""
        self.finished.append(trajectory)
        done, every = len(self.finished), max(1, self.plan.episodes // _LOG_LINES)
        if not self._is_live and done % every == 0 and done < self.plan.episodes:
            result = self.result()
            means = f"reward {number(result.reward.value)}  success {number(result.success.value)}"
            means = means if result.counted else "all have failed"
            self._print(f"{done}/{self.plan.episodes} episodes  {means}  {duration(result.seconds)}")

    def result(self) -> EvaluationResult:
        """The result of the episodes so far."""
        return self.plan.result(list(self.finished), time.perf_counter() - self._began)

    def finish(
        self, result: EvaluationResult, comparison: Comparison | None = None, *, against: str = "", folder: str = ""
    ) -> None:
        """Replace the live table with the final result."""
        self.__exit__()
        width = None if self._is_live else _LOG_WIDTH
        console = safe_console(file=io.StringIO(), width=width, force_terminal=self._is_live)
        with console.capture() as capture:
            console.print(summary_table(result, comparison, against))
            for note in _notes(result, self.plan):
                console.print(note, soft_wrap=True)
            console.print(Text(f"Saved in {folder}"), soft_wrap=True)
        self._print("\n".join(line.rstrip() for line in capture.get().splitlines()), is_styled=True)

    def render(self, width: int) -> Group:
        """The live view: a progress bar above the table."""
        done, total = len(self.finished), self.plan.episodes
        spent, share = time.perf_counter() - self._began, done / total
        # Until the first batch of concurrent episodes is through, their pace predicts nothing.
        left = f", about {duration(spent / share - spent)} left" if self.plan.concurrency <= done < total else ""
        left += f", {min(self.plan.concurrency, total - done)} running" if done < total else ""
        tail = f" {share:4.0%}  {duration(spent)}{left}"
        label = f"{done}/{total} episodes "
        bar = max(0, min(50, width - len(label) - len(tail) - 1))
        full = round(bar * share)
        progress = Text(label).append("━" * full, "green").append("─" * (bar - full), "bright_black").append(tail)
        return Group(progress, summary_table(self.result()) if done else Text("No episode has ended yet.", style="dim"))

    def _print(self, text: str, *, is_styled: bool = False) -> None:
        try:
            print_line(text, self._file, is_styled=is_styled)
        except (OSError, ValueError):  # the reader is gone; the evaluation continues and is recorded
            pass


def summary_table(result: EvaluationResult, comparison: Comparison | None = None, against: str = "") -> Table:
    """All numbers of an evaluation as one table."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("mean", justify="right")
    table.add_column("95 % interval", no_wrap=True)
    table.add_column("", style="dim")
    for row in _rows(result):
        table.add_row(*row)
    if comparison is not None:
        table.add_section()
        table.add_row(
            "", "change", "95 % interval", f"on {comparison.starts} starts, against {Path(against).name}", style="dim"
        )
        table.add_row(*_difference("reward", comparison.reward))
        table.add_row(*_difference("success", comparison.success))
    return table


def _rows(result: EvaluationResult) -> Iterator[tuple[str, str, str, str]]:
    """Label, mean, interval and note of each row."""
    metrics, report = result.metrics(), result.report
    calls, episodes = report.tools.calls, len(result.trajectories)
    yield ("reward", *_format(result.reward), "")
    yield ("success", *_format(result.success), _success_rule(result))
    for k, estimate in result.pass_at().items():
        yield (f"pass@{k}", *_format(estimate), "")
    yield "turns", number(metrics.get("turns/mean")), "", ""
    total = f"the model's, of {number(round(metrics.get('tokens/response', 0)))} after the prompt"
    yield "tokens", number(metrics.get("tokens/model")), "", total
    errors = f"{calls} in all, {report.tools.errors} with an error" if calls else ""
    yield "tool calls", number(calls / episodes if episodes else None), "", errors
    problems = f"{report.tools.format_problems} in all" if report.tools.format_problems else ""
    yield "format problems", number(report.tools.format_problems / episodes if episodes else None), "", problems
    yield "outcomes", "", "", ", ".join(f"{count} {name}" for name, count in report.outcomes.most_common())
    model_tokens = sum(trajectory.sampled_tokens for trajectory in result.trajectories)
    speed = f", {model_tokens / result.seconds:.0f} tokens/s" if result.seconds else ""
    yield "time", "", "", f"{duration(result.seconds)}{speed}"


def _format(estimate: Estimate) -> tuple[str, str]:
    interval = f"{number(estimate.low)} to {number(estimate.high)}" if estimate.has_interval else ""
    return number(None if math.isnan(estimate.value) else estimate.value), interval


def _difference(label: str, test: PairedTest) -> tuple[str, str, str, str]:
    value, interval = _format(test.difference)
    sign = "+" if test.difference.value > 0 else ""
    return label, sign + value, interval, f"p = {number(test.p_value)}{'' if test.is_exact else ' (sampled)'}"


def _success_rule(result: EvaluationResult) -> str:
    if result.success_reward is not None:
        return f"reward of {number(result.success_reward)} or more"
    return "as the environment's info says" if result.has_success_info else "reward above 0"


def _notes(result: EvaluationResult, plan: EvaluationPlan) -> Iterator[Text]:
    """What the reader must know to judge the numbers."""
    report, ended = result.report, len(result.trajectories)
    failed = ended - len(result.counted)
    if ended < plan.episodes:
        yield Text(
            f"Stopped after {ended} of {plan.episodes} episodes. Short episodes end first, so these numbers may be "
            "biased towards them.",
            style="yellow",
        )
    if failed:
        episodes = "All episodes failed" if failed == ended else f"{failed} episodes failed and are not counted"
        yield Text(f"{episodes}. The first error: {report.first_error}", style="red")
    if (warning := refusal_warning(report)) is not None:
        yield Text(warning.what, style="yellow")
    if not all(trajectory.exact for trajectory in result.trajectories):
        yield Text("The server returns no token ids, so tokens are counted with our own tokenizer.", style="dim")
    if plan.samples > 1 and plan.sampling.temperature == 0:
        yield Text(
            "The sampling temperature is 0: episodes from the same start are probably identical.", style="yellow"
        )
