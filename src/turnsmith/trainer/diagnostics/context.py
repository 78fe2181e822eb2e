"""What a check of a step can look at: its metrics, its episodes, and the steps before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import EpisodeReport

WINDOW = 5
"""Steps to average for a trend."""
_SOLVED = 0.95


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a check looks at. Your own check is a function of it that returns a `RunWarning` or None.

    Example:
        >>> def slow_steps(context: StepContext) -> RunWarning | None:
        ...     seconds = context.value("time/step") or 0.0
        ...     if seconds < 600:
        ...         return None
        ...     return context.warning("slow_steps", f"The step took {seconds:.0f} s.", "Time is money.", "Profile it.")
        >>> slow_steps(StepContext({"step": 3, "time/step": 700.0}, EpisodeReport())).what
        'The step took 700 s.'
    """

    record: Mapping[str, Any]
    """The step's metrics."""
    report: EpisodeReport
    """The step's episodes."""
    config: ConfigStore = field(default_factory=ConfigStore)
    first: Sequence[Mapping[str, Any]] = ()
    """The metrics of the run's first steps."""
    recent: Sequence[Mapping[str, Any]] = ()
    """The metrics of the latest steps, this one included; none of them is in `first`."""
    first_phrases: frozenset[str] = frozenset()
    """Phrases that the model wrote in the first steps, as `EpisodeSummary` has them; empty while there are too few."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest possible reward, if the environment or the reward function declares it."""

    def value(self, name: str) -> float | None:
        """A metric of this step; None if it has no such number."""
        value = self.record.get(name)
        return float(value) if isinstance(value, int | float) else None

    def trend(self, name: str) -> tuple[float, float] | None:
        """A metric's mean over the first and over the latest steps; None while there are too few."""
        means: list[float] = []
        for records in (self.first, self.recent):
            values = [float(one[name]) for one in records if isinstance(one.get(name), int | float)]
            if len(values) < WINDOW or not all(map(math.isfinite, values)):
                return None
            means.append(sum(values) / len(values))
        return means[0], means[1]

    @property
    def is_solved(self) -> bool:
        """Whether rewards are close to the declared maximum, or success close to 1."""
        mean, success = self.value("reward/mean"), self.value("success/mean")
        if self.reward_range is not None and mean is not None:
            low, high = self.reward_range
            return mean >= low + _SOLVED * (high - low)
        return success is not None and success >= _SOLVED

    def warning(self, name: str, what: str, why: str, advice: str, episodes: Sequence[str] | None = None) -> RunWarning:
        """A warning that begins at this step."""
        return RunWarning(name, int(self.record["step"]), what, why, advice, tuple(episodes or ())[:3])
