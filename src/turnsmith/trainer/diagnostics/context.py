"""What the checks of a step look at: its metrics, its episodes, and how the run began and went on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import EpisodeReport

WINDOW = 5
"""Steps that are averaged for a trend."""
_SOLVED = 0.95


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a check looks at."""

    record: Mapping[str, Any]
    """The step's metrics."""
    report: EpisodeReport
    """The step's episodes."""
    config: ConfigStore = field(default_factory=ConfigStore)
    first: Sequence[Mapping[str, Any]] = ()
    """The metrics of the run's first few steps."""
    recent: Sequence[Mapping[str, Any]] = ()
    """The metrics of the last few steps, this one included; none of them is in `first`."""
    reward_range: tuple[float, float] | None = None
    """The least and the most that an episode can get, if the environment or the reward function says so."""

    def value(self, name: str) -> float | None:
        """A metric of this step, or None."""
        found = self.record.get(name)
        return float(found) if isinstance(found, int | float) else None

    def trend(self, name: str) -> tuple[float, float] | None:
        """A metric's mean over the first steps and over the last ones; None while there are too few steps."""
        means: list[float] = []
        for records in (self.first, self.recent):
            values = [float(one[name]) for one in records if isinstance(one.get(name), int | float)]
            if len(values) < WINDOW or not all(map(math.isfinite, values)):
                return None
            means.append(sum(values) / len(values))
        return means[0], means[1]

    @property
    def is_solved(self) -> bool:
        """Whether episodes get nearly all there is to get, as far as anybody said what that is."""
        mean, success = self.value("reward/mean"), self.value("success/mean")
        if self.reward_range is not None and mean is not None:
            low, high = self.reward_range
            return mean >= low + _SOLVED * (high - low)
        return success is not None and success >= _SOLVED

    def warning(self, name: str, what: str, why: str, advice: str, episodes: Sequence[str] | None = None) -> RunWarning:
        """A warning that begins at this step."""
        return RunWarning(name, int(self.record["step"]), what, why, advice, tuple(episodes or ())[:3])
