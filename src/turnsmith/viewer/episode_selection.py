"""Selects the few episodes of a run that are worth reading, without loading all of them.

The selection reads only small columns, and only of some steps; then it loads the selected episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from turnsmith.errors import RecordError
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episode_files import episode_files, steps_of
from turnsmith.records.episode_schema import NEWER_COLUMNS, NULLABLE_COLUMNS, SCHEMA
from turnsmith.records.episodes import MOST_RECORDED, iter_episodes
from turnsmith.records.parquet_reader import ParquetSource, damage_named, read_batches
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import RunWarning
from turnsmith.trajectory import Decision, Outcome, Trajectory

_MAX_STEPS = 50
"""Steps to select from: the first, the last, and others evenly spaced between them."""
_MAX_EPISODES = 32
_BEHAVIOUR = {outcome.value for outcome in Outcome if outcome.is_behaviour}


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """The columns of an episode that are read to select from."""

    episode_id: str
    group_id: str
    step: int
    reward: float
    num_turns: int
    outcome: str = "unfinished"
    decision: str = Decision.KEPT

    def check(self) -> None:
        """Raise a ValueError for a value that turnsmith does not write."""
        Decision(self.decision)
        if not abs(self.reward) < MOST_RECORDED:
            raise ValueError("a reward in it is not a finite number")

    @property
    def counts(self) -> bool:
        """Whether it may be trained on."""
        decision = Decision(self.decision)
        return decision is Decision.PENALISED or (self.outcome in _BEHAVIOUR and decision.is_counted)


_ROW_SCHEMA: Any = pa.schema([SCHEMA.field(column.name) for column in fields(EpisodeRow)])


@dataclass(slots=True)
class SelectedEpisode:
    """An episode to show, and why it was selected."""

    step: int
    trajectory: Trajectory
    reasons: list[str]
    advantages: Sequence[float] | None = None
    """One for each token after the prompt, if the episode was trained on."""


@dataclass(slots=True)
class EpisodeSelection:
    """The episodes to show, and what they were selected from."""

    episodes: list[SelectedEpisode] = field(default_factory=list[SelectedEpisode])
    rows: list[EpisodeRow] = field(default_factory=list[EpisodeRow])
    """All episodes of the steps that were read."""
    is_sample: bool = False
    """Whether some steps were not read."""
    unreadable: list[str] = field(default_factory=list[str])
    """Files that could not be read, with the error."""


def select_episodes(run: RunFolder, warnings: Iterable[RunWarning] = ()) -> EpisodeSelection:
    """Select typical, best and worst episodes of a run, the first of every failure, and those that warnings name."""
    selection = EpisodeSelection()
    files = _files_by_step(run)
    steps = _spread(sorted(files), _MAX_STEPS)
    selection.is_sample = len(steps) < len(files)
    for step in steps:
        for file in files[step]:
            selection.rows.extend(_read_rows(file, step, selection.unreadable))
    reasons: dict[tuple[int, str], list[str]] = {}
    for reason, row in _candidates(selection.rows):
        reasons.setdefault((row.step, row.episode_id), []).append(reason)
    for warning in warnings:
        for name in warning.episodes[:3]:
            reasons.setdefault((warning.step, name), []).append(f"warning: {warning.name.replace('_', ' ')}")
    selection.episodes = _load(run, files, dict(list(reasons.items())[:_MAX_EPISODES]), selection.unreadable)
    return selection


def _candidates(rows: list[EpisodeRow]) -> Iterator[tuple[str, EpisodeRow]]:
    """Reasons and episodes in the order to show them; the same episode may come for several reasons."""
    counted = [row for row in rows if row.counts]
    if counted:
        first, last = counted[0].step, max(row.step for row in counted)
        if last > first:
            yield f"typical of the last step, {last}", _median([row for row in counted if row.step == last])
            yield f"typical of the first step, {first}", _median([row for row in counted if row.step == first])
        else:
            yield "typical", _median(counted)
        yield "best", max(counted, key=attrgetter("reward", "step"))
        yield "worst", min(counted, key=lambda row: (row.reward, -row.step))
        yield "most turns", max(counted, key=attrgetter("num_turns", "step"))
        yield from _widest_group(counted)
    seen = {Outcome.COMPLETED.value}
    for row in rows:
        if row.outcome not in seen:
            seen.add(row.outcome)
            yield f"first {row.outcome}", row


def _widest_group(rows: list[EpisodeRow]) -> Iterator[tuple[str, EpisodeRow]]:
    """The best and the worst episode of the group whose rewards differ most."""
    groups: dict[tuple[int, str], list[EpisodeRow]] = {}
    for row in rows:
        if row.group_id:
            groups.setdefault((row.step, row.group_id), []).append(row)
    ends = [(min(group, key=_reward), max(group, key=_reward)) for group in groups.values()]
    if ends:
        worst, best = max(ends, key=lambda pair: (pair[1].reward - pair[0].reward, pair[0].step))
        if worst.reward < best.reward:
            yield "best of the group with the widest rewards", best
            yield "worst of that group", worst


def _reward(row: EpisodeRow) -> float:
    return row.reward


def _median(rows: list[EpisodeRow]) -> EpisodeRow:
    return sorted(rows, key=_reward)[len(rows) // 2]


def _files_by_step(run: RunFolder) -> dict[int, list[Path]]:
    files: dict[int, list[Path]] = {}
    try:
        for file in episode_files(run):
            for step in steps_of(file) or ():
                files.setdefault(step, []).append(file)
    except RecordError:
        pass  # a run without episodes
    return files


def _spread(steps: list[int], most: int) -> list[int]:
    """At most this many of the steps: the first, the last, and others evenly spaced between them."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def read_rows(file: ParquetSource, step: int | None = None) -> list[EpisodeRow]:
    """The rows of an episode file, or of a stream with its bytes; all of them, or those of one step.

    Raises:
        RecordError: It is damaged.
    """
    rows: list[EpisodeRow] = []
    for batch in read_batches(file, _ROW_SCHEMA, optional=NEWER_COLUMNS, nullable=NULLABLE_COLUMNS, step=step):
        with damage_named(file):
            for values in batch.to_pylist():
                row = EpisodeRow(**{name: value for name, value in values.items() if value is not None})
                if step is None or row.step == step:
                    row.check()
                    rows.append(row)
    return rows


def _read_rows(file: Path, step: int, unreadable: list[str]) -> list[EpisodeRow]:
    try:
        return read_rows(file, step)
    except (RecordError, FileNotFoundError) as error:
        unreadable.append(f"{file.name}: {error}")
        return []


def _load(
    run: RunFolder, files: dict[int, list[Path]], reasons: dict[tuple[int, str], list[str]], unreadable: list[str]
) -> list[SelectedEpisode]:
    loaded: dict[tuple[int, str], SelectedEpisode] = {}
    for step in dict.fromkeys(step for step, _ in reasons):
        names = {name for at, name in reasons if at == step}
        advantages = _read_advantages(run, step, names, unreadable)
        for trajectory in _load_step(files.get(step, []), step, names, unreadable):
            name = trajectory.episode_id
            loaded[step, name] = SelectedEpisode(step, trajectory, reasons[step, name], advantages.get(name))
    return [loaded[key] for key in reasons if key in loaded]


def _load_step(files: Iterable[Path], step: int, names: set[str], unreadable: list[str]) -> Iterator[Trajectory]:
    """The episodes with these names; stops reading once all are loaded."""
    missing = set(names)
    for file in files:
        try:
            for trajectory in iter_episodes(file, step):
                if trajectory.episode_id in missing:
                    missing.discard(trajectory.episode_id)
                    yield trajectory
                if not missing:
                    return
        except RecordError as error:
            unreadable.append(str(error))


def _read_advantages(run: RunFolder, step: int, names: set[str], unreadable: list[str]) -> dict[str, Sequence[float]]:
    try:
        return read_advantages(run, step, names).advantages
    except FileNotFoundError:
        return {}  # an evaluation, or a step that was not trained on
    except RecordError as error:
        unreadable.append(str(error))
        return {}
