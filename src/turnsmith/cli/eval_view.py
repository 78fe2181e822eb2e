"""What a person sees of an evaluation: a live table in a terminal, a few lines anywhere else, and the result."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnsmith.cli.engine import engine_name, model_of
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.intervals import Estimate, PairedTest
from turnsmith.rollout.evaluation.result import Comparison, EvaluationResult
from turnsmith.text import duration, number
from turnsmith.trajectory import Trajectory

_PLAIN_WIDTH = 120
_LINES = 10
"""Lines in a log, at most, while episodes are played."""


def evaluation_header(spec: EnvironmentSpec, config: ConfigStore, plan: EvaluationPlan) -> str:
    """One line that says what is evaluated."""
    starts = plan.episodes // plan.samples
    split = f" ({starts} starts, {plan.samples} each)" if plan.samples > 1 else ""
    return f"{spec.name} · {model_of(config)} · {engine_name(config)} · {plan.episodes} episodes{split}"


class EvaluationView:
    """Shows an evaluation while it runs. Told of episodes from another thread; a lost terminal costs only the view.

    Args:
        plan: What is played.
        header: One line that says so.
        file: Where to show it; None: standard output.
        live: Whether to draw a live table; None: if `file` is a terminal that can.
    """

    def __init__(
        self, plan: EvaluationPlan, header: str, file: TextIO | None = None, *, live: bool | None = None
    ) -> None:
        self.plan, self.header = plan, header
        self.finished: list[Trajectory] = []
        """The episodes that have ended, in that order."""
        self._file = file or sys.stdout
        self._began = time.perf_counter()
        self._draws = _can_redraw(self._file) if live is None else live
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

    def loading(self) -> None:
        """Say that the model is being loaded. Nothing is drawn yet: engines print things of their own meanwhile."""
        self._print("loading the model ...")

    def playing(self) -> None:
        """Start the clock, and the live table."""
        self._began = time.perf_counter()
        if self._draws:
            console = Console(file=self._file, highlight=False)
            self._live = Live(_Picture(self), console=console, refresh_per_second=4, transient=True)
            self._live.start()

    def add(self, trajectory: Trajectory) -> None:
        """Take in an episode that has ended."""
        self.finished.append(trajectory)
        done, every = len(self.finished), max(1, self.plan.episodes // _LINES)
        if not self._draws and done % every == 0 and done < self.plan.episodes:
            result = self.result()
            means = f"reward {number(result.reward.value)}  success {number(result.success.value)}"
            self._print(f"{done}/{self.plan.episodes} episodes  {means}  {duration(result.seconds)}")

    def result(self) -> EvaluationResult:
        """What the episodes so far say."""
        return self.plan.result(list(self.finished), time.perf_counter() - self._began)

    def finish(
        self, result: EvaluationResult, comparison: Comparison | None = None, *, against: str = "", folder: str = ""
    ) -> None:
        """Take the live table away and print the result, which stays."""
        self.__exit__()
        plain = None if self._draws else _PLAIN_WIDTH
        console = Console(file=io.StringIO(), width=plain, force_terminal=self._draws, highlight=False)
        with console.capture() as caught:
            console.print(summary(result, comparison, against))
            for note in _notes(result, self.plan):
                console.print(note, soft_wrap=True)
        self._print("\n".join([*(line.rstrip() for line in caught.get().splitlines()), f"in {folder}"]))

    def picture(self, width: int) -> Iterator[RenderableType]:
        """The live view, from top to bottom."""
        done, total = len(self.finished), self.plan.episodes
        spent, share = time.perf_counter() - self._began, done / total
        # Before as many have ended as run at once, the pace of the first ones says nothing.
        left = f", about {duration(spent / share - spent)} left" if self.plan.concurrency <= done < total else ""
        left += f", {min(self.plan.concurrency, total - done)} running" if done < total else ""
        tail = f" {share:4.0%}  {duration(spent)}{left}"
        label = f"{done}/{total} episodes "
        room = max(0, min(50, width - len(label) - len(tail) - 1))
        full = round(room * share)
        yield Text(label).append("━" * full, "green").append("─" * (room - full), "bright_black").append(tail)
        yield summary(self.result()) if done else Text("No episode has ended yet.", style="dim")

    def _print(self, text: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        try:
            print(text.encode(encoding, "replace").decode(encoding), file=self._file, flush=True)
        except (OSError, ValueError):  # nobody reads us any more: the evaluation goes on and is recorded
            pass


class _Picture:
    def __init__(self, view: EvaluationView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield from self._view.picture(options.max_width)


def summary(result: EvaluationResult, comparison: Comparison | None = None, against: str = "") -> Table:
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
    metrics, report = result.metrics(), result.report
    calls, episodes = report.tool_calls, len(result.trajectories)
    yield ("reward", *_shown(result.reward), "")
    yield ("success", *_shown(result.success), _rule(result))
    for k, found in result.pass_at().items():
        yield (f"pass@{k}", *_shown(found), "")
    yield "turns", number(metrics.get("turns/mean")), "", ""
    of = f"the model's, of {number(round(metrics.get('tokens/response', 0)))} after the prompt"
    yield "tokens", number(metrics.get("tokens/model")), "", of
    wrong = f"{calls} in all, {report.tool_errors} with an error" if calls else ""
    yield "tool calls", number(calls / episodes if episodes else None), "", wrong
    problems = f"{report.format_problems} in all" if report.format_problems else ""
    yield "format problems", number(report.format_problems / episodes if episodes else None), "", problems
    yield "outcomes", "", "", ", ".join(f"{count} {name}" for name, count in report.outcomes.most_common())
    model_tokens = sum(sum(one.tokens.mask) for one in result.trajectories)
    speed = f", {model_tokens / result.seconds:.0f} tokens/s" if result.seconds else ""
    yield "time", "", "", f"{duration(result.seconds)}{speed}"


def _shown(found: Estimate) -> tuple[str, str]:
    return number(found.value), f"{number(found.low)} to {number(found.high)}" if found.has_interval else ""


def _difference(label: str, test: PairedTest) -> tuple[str, str, str, str]:
    value, interval = _shown(test.difference)
    sign = "+" if test.difference.value > 0 else ""
    return label, sign + value, interval, f"p = {number(test.p_value)}{'' if test.is_exact else ' (drawn)'}"


def _rule(result: EvaluationResult) -> str:
    if result.success_reward is not None:
        return f"reward of {number(result.success_reward)} or more"
    return "as the environment's info says" if result.has_success_info else "reward above 0"


def _notes(result: EvaluationResult, plan: EvaluationPlan) -> Iterator[Text]:
    report, ended = result.report, len(result.trajectories)
    failed = ended - len(result.counted)
    if ended < plan.episodes:
        yield Text(
            f"Stopped after {ended} of {plan.episodes} episodes. The first to end are often the short ones, so these "
            "numbers may lean to one side.",
            style="yellow",
        )
    if failed:
        left_out = "All episodes failed" if failed == ended else f"{failed} episodes failed and are left out"
        yield Text(f"{left_out}. The first error: {report.first_error}", style="red")
    if not all(one.exact for one in result.trajectories):
        yield Text("The engine gives text without its tokens, so token counts are those of our tokenizer.", style="dim")
    if plan.samples > 1 and plan.sampling.temperature == 0:
        yield Text("The temperature is 0, so the episodes of one start are likely all the same.", style="yellow")


def _can_redraw(file: Any) -> bool:
    """Whether this is a terminal that can redraw and has the characters we draw with."""
    try:
        if not file.isatty() or "utf" not in (file.encoding or "").lower():
            return False
    except (AttributeError, ValueError):
        return False
    return not Console(file=file).is_dumb_terminal
