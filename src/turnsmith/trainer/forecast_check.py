"""A forecast of `turnsmith plan` beside what a run really takes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.errors import ConfigError
from turnsmith.records.files import read_file, write_text
from turnsmith.records.run_folder import RunFolder

if TYPE_CHECKING:
    from turnsmith.trainer.driver.memory import RunWatch

FIRST_STEPS = 3
_SECONDS = 2.0


class ForecastCheck:
    """Compares a run with its forecast, after its first steps and at its end.

    Example:
        >>> check = ForecastCheck({"step_seconds": 4.0, "memory": {"all": 2**31}})
        >>> [check.step({"time/step": seconds}) for seconds in (9.0, 5.0, 5.0)]
        ['', '', 'forecast: 4.0 s a step; after 3 steps 5.0 s, 25 % more']
    """

    def __init__(self, forecast: Mapping[str, Any]) -> None:
        self.forecast = forecast
        self._times: list[float] = []
        self._watch: RunWatch | None = None

    @classmethod
    def of(cls, file: str) -> ForecastCheck:
        """From the file that `turnsmith plan --json` wrote."""
        try:
            found = json.loads(read_file(Path(file).expanduser()))
            _ = float(found["step_seconds"]), float(found["memory"]["all"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"training.plan={file} is no forecast ({error!r}): `turnsmith plan --json FILE` writes one."
            ) from None
        return cls(found)

    def begin(self, run: RunFolder, *, memory: bool) -> None:
        """Write the forecast into the run's folder, before the run knows better, and watch its memory.

        Args:
            run: The run.
            memory: Whether the forecast is about the memory of processes that all run on this machine.
        """
        write_text(run.path / "forecast.json", json.dumps(self.forecast, indent=1) + "\n")
        if memory:
            from turnsmith.trainer.driver.memory import RunWatch  # psutil comes with the extras for training

            self._watch = RunWatch(every=_SECONDS)
            self._watch.__enter__()

    def step(self, metrics: Mapping[str, Any]) -> str:
        """Add a step; after the first few, the comparison in a line, else nothing."""
        self._times.append(float(metrics["time/step"]))
        return self.line() if len(self._times) == FIRST_STEPS else ""

    def line(self) -> str:
        """The comparison so far. The first step, in which everything starts, does not count."""
        if not self._times:
            return ""
        made, fact = float(self.forecast["step_seconds"]), statistics.fmean(self._times[1:] or self._times)
        count = f"{len(self._times)} step{'s' if len(self._times) > 1 else ''}"
        text = f"forecast: {made:.1f} s a step; after {count} {fact:.1f} s, {_difference(made, fact)}"
        if self._watch is None:
            return text
        planned, used = float(self.forecast["memory"]["all"]), float(self._watch.total)
        return f"{text}; memory {planned / 2**30:.1f} GiB, so far {used / 2**30:.1f} GiB, {_difference(planned, used)}"

    def close(self) -> None:
        """Stop watching. Safe to call twice."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.__exit__(None, None, None)


def _difference(made: float, fact: float) -> str:
    off = fact / made - 1 if made else 0.0
    return (
        "as forecast" if abs(off) < 0.005 else f"{abs(off):.0%}".replace("%", " %") + (" more" if off > 0 else " less")
    )
