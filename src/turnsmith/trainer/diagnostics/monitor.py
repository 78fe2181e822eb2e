"""Runs the checks on every step, and reports a warning once when it begins and once when it is over."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.importing import import_object
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import RunWarning, warnings_in
from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.trainer.diagnostics.checks import CHECKS, Check
from turnsmith.trainer.diagnostics.context import WINDOW, StepContext

_QUIET_STEPS = 3
_COVERED = {"constant_groups": "zero_gradient"}
"""Warnings that another one explains better: not reported beside it, and not over because of it."""


class StepMonitor:
    """Runs all checks on each step.

    A warning is over after three steps without it. Each time it recurs it must stay away twice as long, so that a
    flickering one is not reported again and again.

    Args:
        config: The run's settings; `logging.warnings` names checks of the user's own.
        reward_range: Lowest and highest possible reward, if declared.
        past: The metrics of earlier steps, for a resumed run.
        begun: Warnings that are not over yet.
        phrases: What the model wrote in those of the earlier steps that are the run's first.

    Example:
        >>> watch = StepMonitor(ConfigStore())
        >>> bad = watch.step({"step": 1, "grad_norm": float("nan")}, EpisodeReport())
        >>> [(warning.name, warning.what) for warning in bad]
        [('not_a_number', 'grad_norm is nan.')]
        >>> watch.step({"step": 2, "grad_norm": float("nan")}, EpisodeReport())
        []
        >>> [str(told) for step in range(3, 9) for told in watch.step({"step": step}, EpisodeReport())]
        ['over at step 3: not a number (warning of step 1)']
    """

    def __init__(
        self,
        config: ConfigStore,
        reward_range: tuple[float, float] | None = None,
        *,
        past: Iterable[Mapping[str, Any]] = (),
        begun: Iterable[RunWarning] = (),
        phrases: Iterable[str] = (),
    ) -> None:
        self._config = config
        self._range = reward_range
        self._first: list[Mapping[str, Any]] = []
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self._active = {warning.name: warning for warning in begun}
        self._away: dict[str, int] = {}
        self._phrases = set(phrases)
        self._times = Counter(self._active.keys())
        self._checks: list[Check] = [*CHECKS, *map(import_object, config.logging.warnings)]
        for record in past:
            self._remember(record)

    @classmethod
    def of_run(cls, folder: RunFolder, config: ConfigStore, *reward_sources: object) -> StepMonitor:
        """A monitor for a run, which continues where its folder ends.

        Args:
            folder: The run's folder.
            config: The run's settings.
            reward_sources: The reward function or the environment's class, which may declare a `reward_range`.
        """
        ranges = [declared for source in reward_sources if (declared := declared_range(source)) is not None]
        # A warning without a step is a sentence from elsewhere, and is never over.
        begun = [warning for warning in warnings_in(folder.read_events()) if warning.until is None and warning.step]
        past = folder.read_metrics()
        played = [episode for record in past[:WINDOW] for episode in read_episodes(folder, step=record["step"])]
        phrases = {phrase for one in report_of(played).summaries for phrase in one.phrases}
        return cls(config, ranges[0] if ranges else None, past=past, begun=begun, phrases=phrases)

    def step(self, record: Mapping[str, Any], report: EpisodeReport) -> list[RunWarning]:
        """Check a step; return the warnings that begin with it and those that are over."""
        self._remember(record)
        if not self._recent:
            self._phrases.update(phrase for one in report.summaries for phrase in one.phrases)
        phrases = frozenset(self._phrases if self._recent else ())
        context = StepContext(record, report, self._config, self._first, self._recent, phrases, self._range)
        present = {warning.name: warning for check in self._checks if (warning := _run(check, context)) is not None}
        known = self._active.keys() | present.keys()
        news = [present[name] for name in present if name not in self._active and _COVERED.get(name) not in known]
        self._active |= {warning.name: warning for warning in news}
        self._times.update(warning.name for warning in news)
        for name in list(self._active):
            if name in present or _COVERED.get(name) in present:
                self._away.pop(name, None)
            elif self._is_over(name, int(record["step"])):
                news.append(self._active.pop(name).ended(self._away.pop(name)))
        return news

    def _is_over(self, name: str, step: int) -> bool:
        since = self._away.setdefault(name, step)
        return step - since + 1 >= _QUIET_STEPS * 2 ** (max(1, self._times[name]) - 1)

    def _remember(self, record: Mapping[str, Any]) -> None:
        if len(self._first) < WINDOW:
            self._first.append(record)
        else:
            self._recent.append(record)


def declared_range(source: object) -> tuple[float, float] | None:
    """The `reward_range` that an environment or a reward function declares, if it is valid.

    Example:
        >>> class Game:
        ...     reward_range = (0, 1)
        >>> declared_range(Game), declared_range(print)
        ((0.0, 1.0), None)
    """
    declared: Any = getattr(source, "reward_range", None)
    try:
        low, high = map(float, declared)
    except (TypeError, ValueError):
        return None
    return (low, high) if low <= high else None


def _run(check: Check, context: StepContext) -> RunWarning | None:
    try:
        return check(context)
    except Exception as error:  # noqa: BLE001  (a bug in a check must not stop a healthy run)
        what = f"The check {getattr(check, '__name__', check)} raised {error!r}"
        return context.warning("check_failed", what, "This step was not checked for it.", "Fix it, or report it to us.")
