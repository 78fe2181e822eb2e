"""What a run folder says about each step, side by side: its episodes, its ledger line, its metrics, its batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from turnsmith.errors import RecordError
from turnsmith.records.advantages import StepAdvantages, read_advantages
from turnsmith.records.episode_files import episode_files, steps_of
from turnsmith.records.episodes import read_episode_file
from turnsmith.records.json_records import Count
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind, RunState, state_of
from turnsmith.records.signed_ledger import newest_of_each_step
from turnsmith.records.yaml_text import YamlProblem, parse_yaml
from turnsmith.trajectory import Decision, Outcome, Trajectory

_Read = TypeVar("_Read")
_LIMIT_SETTINGS = ("training.schedule", "training.max_staleness")


@dataclass
class StepHistory:
    """All records of one step; None for a missing one."""

    step: int
    episodes: list[Trajectory] = field(default_factory=list[Trajectory])
    """The last attempt at each episode that the step settled."""
    attempts: list[Trajectory] = field(default_factory=list[Trajectory])
    """Earlier attempts, which were retried."""
    advantages: StepAdvantages | None = None
    ledger: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None

    @property
    def counted(self) -> list[Trajectory]:
        """The episodes that the step trained on, by their decisions."""
        return [episode for episode in self.episodes if episode.decision.is_counted]

    @property
    def unrecorded(self) -> int:
        """How many episodes of dropped groups were lost with their process: only the ledger counts them."""
        if self.ledger is None:
            return 0
        lost = sum(episode.outcome is Outcome.WORKER_LOST for episode in self.episodes)
        dropped = sum(episode.decision is Decision.DROPPED for episode in self.episodes)
        more_lost = int(self.ledger.get("outcomes", {}).get(Outcome.WORKER_LOST.value, 0)) - lost
        return max(0, min(more_lost, int(self.ledger.get("dropped", 0)) - dropped))


class _TrainingSettings(msgspec.Struct):
    schedule: str = "sync"
    max_staleness: Count = 1


class _CheckpointSettings(msgspec.Struct):
    save_interval: Count = 1


class RunSettings(msgspec.Struct):
    """What the checks need of `config.yaml`, which another version of turnsmith may have written."""

    training: _TrainingSettings = msgspec.field(default_factory=_TrainingSettings)
    checkpoint: _CheckpointSettings = msgspec.field(default_factory=_CheckpointSettings)


class RunHistory:
    """The records of one run, read once; damaged ones are left out and listed in `damage`.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> run.append_metrics({"step": 1})
        >>> [step.metrics for step in RunHistory(run).steps()]
        [{'step': 1}]
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.damage: list[str] = []
        """A sentence about each file that cannot be read."""
        # Metrics are read first: a step's metrics are written last, so its other records exist, even in a running run.
        self.all_metrics = self.read(run.read_metrics) or []
        self.all_ledger = self.read(run.read_ledger) or []
        self.evaluations = self.read(run.read_evaluations) or []
        self.events = self.read(run.read_events) or []
        self.metrics = newest_of_each_step(self.all_metrics)
        self.ledger = newest_of_each_step(self.all_ledger)
        self.unfinished: list[int] = []
        """Steps with episodes, but without metrics, because the run stopped in them. `steps` fills it."""

    def read(self, function: Callable[..., _Read], *args: Any) -> _Read | None:
        """Call a reader; None if its file is missing or damaged. Damage is recorded."""
        try:
            return function(*args)
        except FileNotFoundError:
            return None
        except (RecordError, OSError) as error:
            self.damage.append(str(error))
            return None

    @cached_property
    def state(self) -> RunState:
        """Whether the run is still going, and how it ended."""
        return state_of(self.events)

    @cached_property
    def is_training(self) -> bool:
        """Whether this run trains, rather than evaluates, plays an episode or serves a model."""
        return not any(
            event["kind"] in (EventKind.EVALUATION, EventKind.PLAYED, EventKind.SERVING) for event in self.events
        )

    @cached_property
    def settings(self) -> RunSettings | None:
        """The settings that the checks need; None if they are not there or cannot be read."""
        data = self.read(self.run.read_bytes, "config.yaml")
        try:
            tree = parse_yaml(data.decode("utf-8")) if data else None
            return None if tree is None else msgspec.convert(tree, RunSettings)
        except (YamlProblem, UnicodeDecodeError, msgspec.ValidationError) as error:
            self.damage.append(f"{self.run.path / 'config.yaml'} is damaged: {error}.")
            return None

    @cached_property
    def loaded_steps(self) -> set[int]:
        """Steps of checkpoints that `load_checkpoint` loaded; the run continued from each of them."""
        return {int(event.get("step") or 0) for event in self.events if event["kind"] == EventKind.LOADED}

    @cached_property
    def limits_known_after(self) -> int:
        """The last step with another schedule or `max_staleness` than config.yaml, which a later resume changed."""
        changed = [
            int(event.get("step") or 0)
            for event in self.events
            if event["kind"] == EventKind.RESUMED
            and any(str(name).startswith(_LIMIT_SETTINGS) for name in _overrides(event))
        ]
        return max(changed, default=0)

    @cached_property
    def has_trained(self) -> bool:
        """Whether batches are recorded at all."""
        return (self.run.path / "trained").is_dir()

    @cached_property
    def has_episodes(self) -> bool:
        """Whether episodes are recorded at all."""
        return self.run.episodes_dir.is_dir() and bool(episode_files(self.run))

    def steps(self) -> Iterator[StepHistory]:
        """Every step that has metrics, oldest first, one at a time in memory."""
        metrics = {line["step"]: line for line in self.metrics}
        ledger = {line["step"]: line for line in self.ledger}
        last = max(metrics, default=-1)
        with_episodes: set[int] = set()
        for number, rows in itertools.groupby(self._rows(), lambda row: row[0]):
            episodes = [episode for _, episode in rows]
            with_episodes.add(number)
            for missing in sorted(step for step in metrics if step < number and step not in with_episodes):
                with_episodes.add(missing)
                yield self._step(missing, [], metrics, ledger)
            if number in metrics:
                yield self._step(number, episodes, metrics, ledger)
            elif number > last:
                self.unfinished.append(number)
        for missing in sorted(metrics.keys() - with_episodes):
            yield self._step(missing, [], metrics, ledger)

    def _step(
        self, number: int, rows: list[Trajectory], metrics: dict[int, dict[str, Any]], ledger: dict[int, dict[str, Any]]
    ) -> StepHistory:
        step = StepHistory(number, metrics=metrics.get(number), ledger=ledger.get(number))
        for row in rows:
            (step.attempts if row.decision is Decision.RETRIED else step.episodes).append(row)
        if self.has_trained:
            step.advantages = self.read(read_advantages, self.run, number)
        return step

    def _rows(self) -> Iterator[tuple[int, Trajectory]]:
        for file in episode_files(self.run) if self.run.episodes_dir.is_dir() else []:
            steps = steps_of(file) or range(0)
            for number, episode in self.episodes_in(file):
                if number in steps:
                    yield number, episode
                else:
                    self.damage.append(f"{file} has an episode of step {number}, {episode.episode_id}.")

    def episodes_in(self, file: Path) -> Iterator[tuple[int, Trajectory]]:
        """The episodes of a file with their steps, up to the first damage.

        Raises:
            FileNotFoundError: It has been merged with others meanwhile.
        """
        try:
            yield from read_episode_file(file)
        except RecordError as error:
            self.damage.append(str(error))


def _overrides(event: dict[str, Any]) -> list[Any]:
    overrides = event.get("overrides")
    return overrides if isinstance(overrides, list) else []
