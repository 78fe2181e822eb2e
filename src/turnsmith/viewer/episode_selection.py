"""Selects the few episodes of a run that are worth reading, without loading all of them.

The selection reads only small columns, and only of some steps; then it loads the selected episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from turnsmith.errors import RecordError
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episode_files import episode_files, row_groups_of, steps_of
from turnsmith.records.episodes import iter_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import RunWarning
from turnsmith.trajectory import Decision, Outcome, Trajectory

_MAX_STEPS = 50
"""Steps to select from: the first, the last, and others evenly spaced between them."""
_MAX_EPISODES = 24
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

    @property
    def counts(self) -> bool:
        """Whether it may be trained on."""
        decision = Decision(self.decision)
        return decision is Decision.PENALISED or (self.outcome in _BEHAVIOUR and decision.is_counted)


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
    """All episodes of the steps that were looked at."""
    is_sample: bool = False
    """Whether some steps were not looked at."""
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
        for name in warning.episodes[:2]:
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
    """The best and the worst of the group whose rewards differ most: what training had to compare."""
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
    """At most that many of the steps: the first, the last, and others evenly spaced between them."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def _read_rows(file: Path, step: int, unreadable: list[str]) -> list[EpisodeRow]:
    try:
        with pq.ParquetFile(file) as parquet:  # an older file may lack the newer columns
            wanted = [column.name for column in fields(EpisodeRow)]
            rows = parquet.read_row_groups(row_groups_of(parquet, step), columns=wanted).to_pylist()
        present = [{name: value for name, value in row.items() if value is not None} for row in rows]
        return [row for row in (EpisodeRow(**values) for values in present) if row.step == step]
    except (pa.ArrowException, OSError, TypeError) as error:
        unreadable.append(f"{file.name}: {error}")
        return []


def _load(
    run: RunFolder, files: dict[int, list[Path]], reasons: dict[tuple[int, str], list[str]], unreadable: list[str]
) -> list[SelectedEpisode]:
    loaded: dict[tuple[int, str], SelectedEpisode] = {}
    for step in dict.fromkeys(step for step, _ in reasons):
        names = {name for at, name in reasons if at == step}
        advantages = _read_advantages(run, step, names)
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


def _read_advantages(run: RunFolder, step: int, names: set[str]) -> dict[str, Sequence[float]]:
    try:
        return read_advantages(run, step, names).advantages
    except (pa.ArrowException, OSError):
        return {}  # an evaluation, or a step that was not trained on
