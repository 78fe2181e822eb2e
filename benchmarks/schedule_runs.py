"""What a run folder says about times, for `benchmarks/schedules.py`."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnsmith import RunFolder
from turnsmith.check.plan.schedule_model import StepCosts, Turn, Workload
from turnsmith.records.episode_files import episode_files
from turnsmith.records.episodes import read_episode_file
from turnsmith.records.yaml_text import parse_yaml
from turnsmith.trajectory import Trajectory

WARM_UP = 2
"""Steps at the beginning of a run that are left out."""


@dataclass(frozen=True)
class MeasuredRun:
    """What a run folder says about times."""

    schedule: str
    groups: int
    slots: int
    max_staleness: int
    ahead: int
    """Batches that are dispatched ahead."""
    episodes: list[tuple[int, Trajectory]]
    """With their steps."""
    costs: list[StepCosts]
    steps: list[float]
    """Wall-clock time of each step."""

    @property
    def staleness(self) -> float:
        """The mean number of steps by which episodes were behind the weights that they updated."""
        return statistics.fmean(step - 1 - episode.turns[0].weights_version for step, episode in self.episodes)


def read_measured(path: Path) -> MeasuredRun:
    """Read a run folder, without its first steps."""
    run = RunFolder.open(path)
    ours, theirs = (parse_yaml((path / name).read_text(encoding="utf-8")) for name in ("config.yaml", "verl.yaml"))
    metrics = {line["step"]: line for line in run.read_metrics()}
    rows = [row for file in episode_files(run) for row in read_episode_file(file) if row[0] in metrics]
    longest = {step: max(one.seconds for number, one in rows if number == step) for step in metrics}
    events = itertools.takewhile(lambda event: event["kind"] != "resumed", run.read_events())  # one life of it
    phases = [(event["content"], event["time"]) for event in events if event["kind"] == "phase"]
    starts = [place for place, (name, _) in enumerate(phases) if name == "generate"]
    costs: list[StepCosts] = []
    steps: list[float] = []
    for step, (start, end) in enumerate(itertools.pairwise(starts), start=1):
        if step <= WARM_UP:
            continue
        times = dict(phases[start:end])
        generated, synced, done = times["old_log_prob"], times["sync_weights"], phases[end][1]
        sync = float(metrics[step]["time/sync_weights"])
        hand_over = max(0.0, generated - times["generate"] - longest[step])
        costs.append(StepCosts(hand_over, synced - generated, sync, max(0.0, done - synced - sync)))
        steps.append(done - times["generate"])
    if not steps:
        raise SystemExit(f"{path} has too few steps: the first {WARM_UP} and the last are left out.")
    training, schedule = ours["training"], ours["training"]["schedule"]
    return MeasuredRun(
        schedule,
        training["batch_size"] // training["group_size"],
        ours["inference"]["max_concurrency"],
        training["max_staleness"],
        0 if schedule == "sync" else theirs["trainer"]["v1"][schedule]["num_warmup_batches"],
        [row for row in rows if row[0] > WARM_UP],
        costs,
        steps,
    )


def measured_workload(run: MeasuredRun, turns_of: MeasuredRun, sync: MeasuredRun | None) -> Workload:
    """Draws groups as they were measured in `turns_of`, and step costs as in `run`.

    Only a run of `sync` shows how long the hand-over takes: elsewhere other episodes go on meanwhile.
    """
    seconds = _uninterrupted(turns_of)
    groups: dict[str, list[list[Turn]]] = {}
    for _, episode in turns_of.episodes:
        turns = [Turn(next(seconds), turn.step_seconds) for turn in episode.turns]
        # What an episode takes besides: building the environment, rendering, rewards.
        more = episode.seconds - sum(turn.generate_seconds + turn.step_seconds for turn in episode.turns)
        turns[-1] = turns[-1]._replace(environment=turns[-1].environment + max(0.0, more))
        groups.setdefault(episode.group_id, []).append(turns)
    measured = list(groups.values())

    def costs(chance: random.Random, schedule: str) -> StepCosts:
        drawn = chance.choice(run.costs)
        return drawn if sync is None else drawn._replace(hand_over=chance.choice(sync.costs).hand_over)

    return Workload(lambda chance: chance.choice(measured), costs)


def _uninterrupted(run: MeasuredRun) -> Iterator[float]:
    """The times of generation of all turns, in order; one that an update may have paused is replaced by another's."""
    seconds = [turn.generate_seconds for _, episode in run.episodes for turn in episode.turns]
    pauses = [cost.update + cost.sync for cost in run.costs] if run.schedule == "colocate_async" else []
    clean = [one for one in seconds if one < min(pauses, default=float("inf"))]
    chance = random.Random(0)
    return (one if one < min(pauses, default=float("inf")) else chance.choice(clean) for one in seconds)
