"""What a run folder of `benchmarks/heavy_tail.py` says about times, for `benchmarks/schedules.py`."""

from __future__ import annotations

import itertools
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.schedule_model import StepCosts, Turn, Workload

from turnsmith import RunFolder
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
    phases = [(event["content"], event["time"]) for event in run.read_events() if event["kind"] == "phase"]
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


def measured_workload(sync: MeasuredRun, run: MeasuredRun) -> Workload:
    """Groups and hand-over as in the run of `sync`, updates as in `run`."""
    groups: dict[str, list[list[Turn]]] = {}
    for _, episode in sync.episodes:
        turns = [Turn(turn.generate_seconds, turn.step_seconds) for turn in episode.turns]
        # What an episode takes besides: building the environment, rendering, rewards.
        more = max(0.0, episode.seconds - sum(map(sum, turns)))
        turns[-1] = turns[-1]._replace(environment=turns[-1].environment + more)
        groups.setdefault(episode.group_id, []).append(turns)
    measured = list(groups.values())

    def costs(chance: random.Random, schedule: str) -> StepCosts:
        return chance.choice(run.costs)._replace(hand_over=chance.choice(sync.costs).hand_over)

    return Workload(lambda chance: chance.choice(measured), costs)
