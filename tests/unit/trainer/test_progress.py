import io
import math

import pytest
from rich.console import Console

from turnsmith.text import number, sparkline
from turnsmith.trainer.display import Panel, ProgressView, plain_line

METRICS = {
    "step": 3,
    "reward/mean": 0.25,
    "reward/min": 0.0,
    "reward/max": 1.0,
    "reward/std": 0.2,
    "entropy": 1.5,
    "kl": 0.0012,
    "grad_norm": 0.5,
    "time/step": 4.0,
    "time/generate": 2.5,
    "time/update_actor": 1.2,
    "time/checkpoint": 0.0,
    "episodes/total": 32,
    "episodes/completed": 30,
    "episodes/environment_failed": 2,
}


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def drawn(panel: Panel, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=30, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(panel)
    return capture.get().splitlines()


def test_a_pipe_gets_one_ascii_line_a_step() -> None:
    file = io.StringIO()
    view = ProgressView(file)
    view.start(40, "guess, tiny")
    view.phase("starting Ray")
    view.phase("starting Ray")
    view.step(METRICS)
    view.phase("generate")
    view.note("careful")
    view.finish("done")
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["guess, tiny", "starting Ray ..."]
    assert lines[2].startswith("step  3/40  reward 0.250 (0 to 1)  entropy 1.50")
    assert lines[2].endswith("4.0 s (generate 2.5, update_actor 1.2)  32 episodes: 30 completed, 2 environment_failed")
    assert lines[2].isascii()
    assert lines[3:] == ["careful", "done"]


@pytest.mark.parametrize("metrics", [{}, {"step": 1}, {"step": 1, "reward/mean": math.nan, "time/step": 0.0}])
def test_any_metric_may_be_missing(metrics: dict[str, float]) -> None:
    assert plain_line(metrics, 10).startswith("step ")
    panel = Panel(10, "header")
    panel.add_step(metrics)
    assert drawn(panel, 100)


def test_the_panel_shows_what_a_person_asks_for() -> None:
    panel = Panel(40, "guess, tiny")
    for step in range(1, 21):
        panel.add_step({**METRICS, "step": step, "reward/mean": step / 20})
    panel.begin_phase("update_actor")
    text = "\n".join(drawn(panel, 100))
    for part in ("guess, tiny", "step 20/40", "50%", "left", "update_actor", "reward", "▁", "entropy", "KL", "█"):
        assert part in text
    for part in ("gradient norm", "generate 2.5 s", "30 completed, 2 environment_failed", "0 to 1"):
        assert part in text


def test_steps_that_a_resumed_run_made_before_are_done() -> None:
    assert "step 3/6" in "\n".join(drawn(Panel(6, "x", done=3), 100))


def test_a_bar_shows_how_far_the_start_is_and_what_it_waits_for() -> None:
    panel = Panel(40, "guess, tiny")
    shown = ["starting Ray, attempt 2 of 4: busy", "importing torch and verl", "loading model", "generate"]
    rows: list[str] = []
    for phase in shown:
        panel.begin_phase(phase)
        rows.append("\n".join(drawn(panel, 100)))
        assert phase in rows[-1]
    for row, label, bars in zip(
        rows, ("start 3/6", "start 4/6", "start 6/6", "step 0/40"), (20, 30, 50, 0), strict=True
    ):
        assert label in row
        assert row.count("━") == bars


def test_a_constant_reward_is_pointed_out() -> None:
    panel = Panel(40, "x")
    panel.add_step({**METRICS, "reward/std": 0.0})
    assert "nothing to learn" in "\n".join(drawn(panel, 100))


@pytest.mark.parametrize("width", [1, 2, 5, 16, 24, 40, 79, 100, 300])
def test_no_width_breaks_the_panel_or_wraps_a_row(width: int) -> None:
    panel = Panel(10**6, "a header " * 30)
    panel.add_step(METRICS)
    lines = drawn(panel, width)
    assert len(lines) == 12
    assert all(len(line) <= width for line in lines)


def test_a_terminal_gets_the_live_view_and_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    with ProgressView(file) as view:
        view.start(40, "guess, tiny")
        view.step(METRICS)
        view.note("careful [not markup]")
        view.finish("done")
        view.finish("done")
    text = file.getvalue()
    assert "careful [not markup]" in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
    assert text.rstrip().endswith("done")


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_redraw_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    file = Terminal()
    view = ProgressView(file)
    view.start(1, "guess")
    view.finish("done")
    assert file.getvalue() == "guess\ndone\n"


def test_an_output_that_is_gone_or_cannot_spell_does_not_stop_the_run() -> None:
    closed = io.StringIO()
    closed.close()
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    for file in (closed, narrow):
        view = ProgressView(file)
        view.start(1, "spiel über alles")
        view.step(METRICS)
        view.finish("done")


def test_numbers_are_short_and_sparklines_keep_their_ends() -> None:
    values = (0.1, 1e-12, -123456.7, 1e20, -math.inf, 999999, 0.09999, 9.999, "x")
    assert all(len(number(value)) <= 8 for value in values)
    assert sparkline([math.nan, 0.0, math.inf, 1.0], 10) == "▁█"
    assert sparkline([], 10) == sparkline([1.0], 0) == ""
    assert sparkline([0.0] * 999 + [1.0] * 999, 4) == "▁▁██"


def test_a_long_header_is_cut_between_its_parts_and_a_note_keeps_its_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Panel(4, "game · a/model · grpo, 32 episodes a step · transformers on cpu")
    assert drawn(panel, 40)[1:4] == ["game · a/model", "grpo, 32 episodes a step", "transformers on cpu"]
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    file = Terminal()
    with ProgressView(file) as view:
        view.start(4, "game")
        view.note("warning at step 1: something\n  what to do: look at the episodes, all of them")
    text = file.getvalue().replace("\x1b[2K", "").replace("\r", "")
    assert "  what to do: look at the episodes, all\n      of them" in text


def test_the_panel_shows_each_evaluation_that_has_a_number() -> None:
    panel = Panel(40, "x")
    panel.add_step(METRICS)
    for record in ({"success/mean": 0.25}, {"success/mean": 0.5, "reward/mean": None}):
        panel.add_evaluation(record)
    rows = [row.split() for row in drawn(panel, 100) if row.startswith("eval")]
    assert rows == [["eval", "success", "0.500", "▁█"]]
