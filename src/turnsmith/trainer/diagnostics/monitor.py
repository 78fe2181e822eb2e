"""Looks at every step of a run and tells once when something begins to be wrong, and once when it is over."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from turnsmith import config_sources
from turnsmith.config import ConfigStore
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import RunWarning, warnings_in
from turnsmith.rollout.episode_report import EpisodeReport
from turnsmith.trainer.diagnostics.checks import CHECKS, Check
from turnsmith.trainer.diagnostics.context import WINDOW, StepContext

_QUIET_STEPS = 3
_COVERED = {"constant_groups": "zero_gradient"}
"""Warnings of which another one says more: not told beside it, and not over because of it."""


class StepMonitor:
    """Runs all checks on each step.

    A warning is over after three steps without it. When it comes back it must stay away twice as long the next time,
    so that one which comes and goes is not told for ever.

    Args:
        config: The run's settings.
        reward_range: The least and the most that an episode can get, if that was declared.
        past: The metrics of steps that were made before, for a run that is taken up again.
        begun: Warnings that are not over yet.

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
    ) -> None:
        self._config = config
        self._range = reward_range
        self._first: list[Mapping[str, Any]] = []
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self._active = {warning.name: warning for warning in begun}
        self._away: dict[str, int] = {}
        self._times = Counter(self._active.keys())
        for record in past:
            self._remember(record)

    @classmethod
    def of_run(cls, folder: RunFolder, *payers: object) -> StepMonitor:
        """A watch for a run, which goes on where its folder ends; `payers` may declare a `reward_range`."""
        ranges = [found for payer in payers if (found := declared_range(payer)) is not None]
        config = config_sources.load(folder.path / "config.yaml")
        # A warning of no step is a sentence from elsewhere, and is never over.
        begun = [warning for warning in warnings_in(folder.read_events()) if warning.until is None and warning.step]
        return cls(config, ranges[0] if ranges else None, past=folder.read_metrics(), begun=begun)

    def step(self, record: Mapping[str, Any], report: EpisodeReport) -> list[RunWarning]:
        """Look at a step that was made; return what begins with it and what is over."""
        self._remember(record)
        seen = StepContext(record, report, self._config, self._first, self._recent, self._range)
        found = {warning.name: warning for check in CHECKS if (warning := _run(check, seen)) is not None}
        about = self._active.keys() | found.keys()
        told = [found[name] for name in found if name not in self._active and _COVERED.get(name) not in about]
        self._active |= {warning.name: warning for warning in told}
        self._times.update(warning.name for warning in told)
        for name in list(self._active):
            if name in found or _COVERED.get(name) in found:
                self._away.pop(name, None)
            elif self._is_over(name, int(record["step"])):
                told.append(self._active.pop(name).ended(self._away.pop(name)))
        return told

    def _is_over(self, name: str, step: int) -> bool:
        since = self._away.setdefault(name, step)
        return step - since + 1 >= _QUIET_STEPS * 2 ** (max(1, self._times[name]) - 1)

    def _remember(self, record: Mapping[str, Any]) -> None:
        if len(self._first) < WINDOW:
            self._first.append(record)
        else:
            self._recent.append(record)


def declared_range(payer: object) -> tuple[float, float] | None:
    """The `reward_range` of an environment or a reward function, if it is one.

    Example:
        >>> class Game:
        ...     reward_range = (0, 1)
        >>> declared_range(Game), declared_range(print)
        ((0.0, 1.0), None)
    """
    found: Any = getattr(payer, "reward_range", None)
    try:
        low, high = map(float, found)
    except (TypeError, ValueError):
        return None
    return (low, high) if low <= high else None


def _run(check: Check, seen: StepContext) -> RunWarning | None:
    try:
        return check(seen)
    except Exception as error:  # noqa: BLE001  (a mistake in a check must not stop a run that goes well)
        what = f"The check {check.__name__} failed: {error!r}"
        return seen.warning("check_failed", what, "This step was not looked at for it.", "Please report it.")
