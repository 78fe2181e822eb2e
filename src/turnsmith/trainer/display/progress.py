"""The progress of a run: a live view in a terminal, one line per step anywhere else.

Knows nothing of training; it is given phases and metrics. It must never stop a run: a terminal that is narrow, closed
or without Unicode costs the view, not the run.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TextIO

from turnsmith.terminal import can_draw_live, print_line, safe_console
from turnsmith.text import wrapped
from turnsmith.trainer.display.text import evaluation_line, plain_line

if TYPE_CHECKING:
    from rich.live import Live

    from turnsmith.trainer.display.panel import Panel


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
        from rich.live import Live

        from turnsmith.trainer.display.panel import Panel

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
            elif (
                changed and not self._stepped
            ):  # a log needs it only during the start; the lines of the steps have their times
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
                from rich.text import Text

                self._live.console.print(Text(text))
            else:
                print_line(text, self._file or sys.stdout)
        except (OSError, ValueError):  # Nobody reads us any more: the run goes on.
            pass
