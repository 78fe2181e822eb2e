"""Chooses the few episodes of a run that are worth a look, without reading all of them.

Only small columns of some steps are read to choose; then the chosen episodes are read, and no others are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from turnsmith.errors import RecordError
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episodes import episode_files, iter_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_warnings import RunWarning
from turnsmith.trajectory import Decision, Outcome, Trajectory

_STEPS = 50
"""Steps whose episodes are looked at to choose from: the first, the last, and others evenly between."""
_MOST = 24
_COLUMNS = ("episode_id", "group_id", "step", "outcome", "reward", "num_turns", "decision")
_STEP = re.compile(r"step-(\d+)-")


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What is known of an episode before it is read."""

    episode_id: str
    group_id: str
    step: int
    outcome: str
    reward: float
    turns: int
    decision: Decision = Decision.KEPT

    @property
    def counts(self) -> bool:
        """Whether it may be trained on."""
        return self.decision is Decision.PENALISED or (self.outcome in _BEHAVIOUR and self.decision.is_counted)


_BEHAVIOUR = {outcome.value for outcome in Outcome if outcome.is_behaviour}


@dataclass(slots=True)
class Chosen:
    """An episode to show, and why."""

    step: int
    trajectory: Trajectory
    reasons: list[str]
    advantages: Sequence[float] | None = None
    """One for each token after the prompt, if it was trained on."""


@dataclass(slots=True)
class Choice:
    """The episodes to show, and what they were chosen from."""

    episodes: list[Chosen] = field(default_factory=list[Chosen])
    rows: list[EpisodeRow] = field(default_factory=list[EpisodeRow])
    """All that were looked at."""
    is_sample: bool = False
    """Whether there are steps that were not looked at."""
    unreadable: list[str] = field(default_factory=list[str])
    """Files that could not be read, and why."""


def choose_episodes(run: RunFolder, warnings: Iterable[RunWarning] = ()) -> Choice:
    """Choose the episodes of a run to show: typical, best and worst ones, the first of every failure, and those that
    warnings name.
    """
    choice = Choice()
    by_step = _files_by_step(run)
    looked_at = _spread(sorted(by_step), _STEPS)
    choice.is_sample = len(looked_at) < len(by_step)
    for step in looked_at:
        for file in by_step[step]:
            choice.rows.extend(_rows(file, choice.unreadable))
    wanted: dict[tuple[int, str], list[str]] = {}
    for reason, row in _interesting(choice.rows):
        wanted.setdefault((row.step, row.episode_id), []).append(reason)
    for warning in warnings:
        for name in warning.episodes[:2]:
            wanted.setdefault((warning.step, name), []).append(f"warning: {warning.name.replace('_', ' ')}")
    choice.episodes = _read(run, by_step, dict(list(wanted.items())[:_MOST]), choice.unreadable)
    return choice


def _interesting(rows: list[EpisodeRow]) -> Iterator[tuple[str, EpisodeRow]]:
    """Episodes in the order to show them; the same one may come for several reasons."""
    counted = [row for row in rows if row.counts]
    if counted:
        first, last = counted[0].step, max(row.step for row in counted)
        if last > first:
            yield f"typical of step {last}, the last", _median([row for row in counted if row.step == last])
            yield f"typical of step {first}, the first", _median([row for row in counted if row.step == first])
        else:
            yield "typical", _median(counted)
        yield "best", max(counted, key=lambda row: (row.reward, row.step))
        yield "worst", min(counted, key=lambda row: (row.reward, -row.step))
        yield "most turns", max(counted, key=lambda row: (row.turns, row.step))
        yield from _widest_group(counted)
    seen = {Outcome.COMPLETED.value}
    for row in rows:
        if row.outcome not in seen:
            seen.add(row.outcome)
            yield f"first {row.outcome}", row


def _widest_group(rows: list[EpisodeRow]) -> Iterator[tuple[str, EpisodeRow]]:
    """The two ends of the group whose rewards differ most: what training had to compare."""
    groups: dict[tuple[int, str], list[EpisodeRow]] = {}
    for row in rows:
        groups.setdefault((row.step, row.group_id), []).append(row)
    ends = [(min(group, key=_reward), max(group, key=_reward)) for (_, name), group in groups.items() if name]
    least, most = max(ends, key=lambda pair: (pair[1].reward - pair[0].reward, pair[0].step), default=(None, None))
    if least is not None and most is not None and least.reward < most.reward:
        yield "best of the group that differs most", most
        yield "worst of the same group", least


def _reward(row: EpisodeRow) -> float:
    return row.reward


def _median(rows: list[EpisodeRow]) -> EpisodeRow:
    return sorted(rows, key=_reward)[len(rows) // 2]


def _files_by_step(run: RunFolder) -> dict[int, list[Path]]:
    by_step: dict[int, list[Path]] = {}
    try:
        files = episode_files(run)
    except RecordError:
        return {}
    for file in files:
        named = _STEP.match(file.name)
        if named:
            by_step.setdefault(int(named[1]), []).append(file)
    return by_step


def _spread(steps: list[int], most: int) -> list[int]:
    """At most that many steps: the first, the last, and others evenly between."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def _rows(file: Path, unreadable: list[str]) -> list[EpisodeRow]:
    try:
        with pq.ParquetFile(file) as parquet:  # columns that an old file does not have are left out
            table: list[dict[str, Any]] = parquet.read(columns=list(_COLUMNS)).to_pylist()
        return [
            EpisodeRow(
                one["episode_id"],
                one["group_id"],
                one["step"],
                one["outcome"] or "unfinished",
                one["reward"],
                one["num_turns"],
                Decision(one.get("decision") or Decision.KEPT),
            )
            for one in table
        ]
    except (pa.ArrowException, OSError, KeyError) as error:
        unreadable.append(f"{file.name}: {error}")
        return []


def _read(
    run: RunFolder, by_step: dict[int, list[Path]], wanted: dict[tuple[int, str], list[str]], unreadable: list[str]
) -> list[Chosen]:
    found: dict[tuple[int, str], Chosen] = {}
    for step in dict.fromkeys(step for step, _ in wanted):
        missing = {name for at, name in wanted if at == step}
        advantages = _advantages(run, step, missing)
        for trajectory in _episodes(by_step.get(step, []), missing, unreadable):
            name = trajectory.episode_id
            found[step, name] = Chosen(step, trajectory, wanted[step, name], advantages.get(name))
    return [found[key] for key in wanted if key in found]


def _episodes(files: Iterable[Path], names: set[str], unreadable: list[str]) -> Iterator[Trajectory]:
    """The episodes of that name; files are left as soon as all are found."""
    left = set(names)
    for file in files:
        try:
            for trajectory in iter_episodes(file):
                if trajectory.episode_id in left:
                    left.discard(trajectory.episode_id)
                    yield trajectory
                if not left:
                    return
        except RecordError as error:
            unreadable.append(str(error))


def _advantages(run: RunFolder, step: int, names: set[str]) -> dict[str, Sequence[float]]:
    try:
        return read_advantages(run, step, names).advantages
    except (pa.ArrowException, OSError):
        return {}  # an evaluation, a step that was not trained yet, or a run of before these were kept
