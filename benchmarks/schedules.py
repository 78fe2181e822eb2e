"""The three schedules in a discrete-event simulation: compared with real runs, then carried to 512 GPUs.

`compare RUN ...` reads run folders: groups, with the times of generation and environment of each turn, and the times of
update and weight sync. It draws from them, simulates the schedule of each run, and prints the error of the simulated
time per step. In `colocate_async` a turn that an update paused took longer: its time is replaced by that of another
turn. If one of the runs is `sync`, the others are also predicted from its turns alone. Exits 1 if a simulation is off
by more than 15 %, or a prediction by more than 25 %, the limit of `turnsmith check --plan`, which uses the same model.

`scale RUN --lengths OTHER` simulates 200,000 episodes on 512 GPUs: turns per episode and the shape of environment times
come from RUN, the shape of turn lengths from OTHER, sizes and speeds from `Cluster`, whose values are assumptions. The
ideal keeps every GPU busy all the time, so the cost is how many times as many GPU hours an episode takes.

With `--json` the figures are added to `benchmarks/results/schedules_compare.json` and `schedules_scale.json`, from
which `python -m docs.images.schedules` draws its picture. Run, in the project's folder:

    python -m benchmarks.heavy_tail heavy --schedules sync colocate_async --steps 20
    python -m benchmarks.schedules compare heavy/sync heavy/colocate_async
    python -m benchmarks.schedules scale heavy/sync --lengths learning/runs/NAME  # of benchmarks.learning
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.schedule_runs import WARM_UP, MeasuredRun, measured_workload, read_measured

from turnsmith import read_episodes
from turnsmith.check.plan.schedule_model import Simulated, StepCosts, Turn, Workload, simulate

SCHEDULES = ("sync", "colocate_async", "separate_async")
MOST_ERROR, MOST_PREDICTED = 0.15, 0.25
ROUNDS = 20
"""Simulations of each run, with different random numbers."""


def compare(paths: Sequence[Path], *, is_recorded: bool) -> dict[str, float]:
    """Simulate each run and print how far off the simulation is; returns the figures."""
    print(f"{'run':26}{'steps':>6}{'s/step':>8}{'simulated':>12}{'error':>8}{'staleness':>11}{'simulated':>11}")
    runs = [read_measured(path) for path in paths]
    sync = next((run for run in runs if run.schedule == "sync"), None)
    figures: dict[str, float] = {"rounds": ROUNDS}
    for run in runs:
        figures |= _simulate_and_print(run.schedule, run, run, sync)
        if sync is not None and run is not sync:
            figures |= _simulate_and_print(f"{run.schedule}_predicted", run, sync, sync)
    results.record("schedules_compare", figures, is_wanted=is_recorded)
    return figures


def misses(figures: dict[str, float]) -> list[str]:
    """The errors that are above their limits."""
    errors = {name.removesuffix("_error"): found for name, found in figures.items() if name.endswith("_error")}
    limits = {name: MOST_PREDICTED if name.endswith("_predicted") else MOST_ERROR for name in errors}
    return [f"{name}: {found:+.1%}" for name, found in errors.items() if abs(found) > limits[name]]


def _simulate_and_print(
    name: str, run: MeasuredRun, turns_of: MeasuredRun, sync: MeasuredRun | None
) -> dict[str, float]:
    work = measured_workload(run, turns_of, sync)
    rounds = [_simulate_again(run, work, seed) for seed in range(ROUNDS)]
    means = [statistics.fmean(found.step_seconds) for found in rounds]
    real, mean = statistics.fmean(run.steps), statistics.fmean(means)
    stale = statistics.fmean(mean_staleness(found) for found in rounds)
    error = mean / real - 1
    print(
        f"{name:26}{len(run.steps):6}{real:8.3f}{mean:7.3f} ±{statistics.stdev(means):.2f}"
        f"{error:+8.1%}{run.staleness:11.2f}{stale:11.2f}"
    )
    return {f"{name}_steps": len(run.steps), f"{name}_real": real, f"{name}_simulated": mean, f"{name}_error": error}


def _simulate_again(run: MeasuredRun, work: Workload, seed: int) -> Simulated:
    steps = len(run.steps) + WARM_UP
    return simulate(
        run.schedule,
        work,
        groups=run.groups,
        steps=steps,
        slots=run.slots,
        max_staleness=run.max_staleness,
        ahead=run.ahead,
        warm_up=WARM_UP,
        seed=seed,
    )


def mean_staleness(found: Simulated) -> float:
    """Of all groups."""
    staleness = sum(found.staleness, Counter())
    return sum(lag * count for lag, count in staleness.items()) / staleness.total()


@dataclass(frozen=True)
class Cluster:
    """GPUs, and how fast they are. The speeds are assumptions: nothing here ran on a GPU."""

    gpus: int = 512
    slots: int = 32
    """Episodes that one GPU generates at once."""
    tokens_per_second: float = 40.0
    """Of one episode that is being generated."""
    trained_tokens_per_second: float = 7000.0
    """Of one GPU: a model of 7e9 weights at 8 FLOPs per weight and token, 40 % of 989e12 FLOPS."""
    sync_seconds: float = 5.0
    tokens_per_turn: float = 400.0
    """The mean; the shape of the distribution is measured."""
    environment_median: float = 2.0
    """Median time of an environment's step, in seconds."""


@dataclass(frozen=True)
class Shape:
    """Measured distributions without their units."""

    turns: list[int]
    tokens: list[float]
    """Sampled tokens of each turn over their mean."""
    latencies: list[float]
    """Times of environment steps over their median."""

    @classmethod
    def of(cls, run: Path, lengths: Path) -> Shape:
        """Turns and latencies of the episodes of one run, tokens of each turn of another."""
        played, said = read_episodes(run), read_episodes(lengths)
        seconds = [turn.step_seconds for episode in played for turn in episode.turns]
        middle = statistics.median(seconds)
        tokens = [turn.stop - turn.start for episode in said for turn in episode.turns]
        mean = statistics.fmean(tokens)
        turns = [len(episode.turns) for episode in played if episode.turns]
        return cls(turns, [one / mean for one in tokens], [one / middle for one in seconds])

    def figures(self) -> dict[str, float]:
        """How much was measured, and how far the tail of environment times reaches."""
        return {
            "environment_steps": len(self.latencies),
            "p99_over_median": statistics.quantiles(self.latencies, n=100)[-1],
            "longest_over_median": max(self.latencies),
            "turns_read": len(self.tokens),
        }

    def gpu_seconds(self, cluster: Cluster) -> tuple[float, float]:
        """GPU time that an episode needs at least, for generation and for training."""
        tokens = statistics.fmean(self.turns) * cluster.tokens_per_turn
        return tokens / (cluster.tokens_per_second * cluster.slots), tokens / cluster.trained_tokens_per_second


def run_at_scale(
    schedule: str, shape: Shape, cluster: Cluster, *, batch: int, group_size: int, episodes: int, staleness: int
) -> dict[str, float]:
    """Simulate one schedule on the cluster."""
    generation, training = shape.gpu_seconds(cluster)
    # Separate GPUs are divided by the time that each side needs.
    share = generation / (generation + training) if schedule == "separate_async" else 1.0
    generators = max(1, round(cluster.gpus * share))
    trainers = cluster.gpus - generators if schedule == "separate_async" else cluster.gpus
    update, per_turn = batch * training / trainers, cluster.tokens_per_turn / cluster.tokens_per_second
    latencies = [cluster.environment_median * one for one in shape.latencies]

    def episode(chance: random.Random) -> Sequence[Turn]:
        number = chance.choice(shape.turns)
        return [Turn(chance.choice(shape.tokens) * per_turn, chance.choice(latencies)) for _ in range(number)]

    costs = StepCosts(0.0, update, cluster.sync_seconds, 0.0)
    work = Workload(lambda chance: [episode(chance) for _ in range(group_size)], lambda chance, schedule: costs)
    ahead = staleness if schedule == "separate_async" else 1
    steps = max(4, episodes // batch)
    found = simulate(
        schedule,
        work,
        groups=batch // group_size,
        steps=steps + ahead + WARM_UP,
        slots=generators * cluster.slots,
        max_staleness=staleness,
        ahead=ahead,
        warm_up=ahead + WARM_UP,
    )
    speed, ideal = batch * steps / sum(found.step_seconds), cluster.gpus / (generation + training)
    return {
        "episodes": batch * steps,
        "gpus": generators,
        "speed": speed,
        "use": found.slot_use,
        "staleness": mean_staleness(found),
        "cost": ideal / speed,
    }


def scale(shape: Shape, cluster: Cluster, options: argparse.Namespace) -> None:
    """Simulate the chosen schedules on the cluster, with each `max_staleness`."""
    names = f"{'limit':>6}{'episodes':>11}{'gen. GPUs':>10}{'ep./s':>8}{'slot use':>9}{'staleness':>10}{'cost':>7}"
    print(f"{'schedule':16}{names}")
    sizes: dict[str, int] = {name: getattr(options, name) for name in ("batch", "group_size", "episodes")}
    ideal = cluster.gpus / sum(shape.gpu_seconds(cluster))
    figures: dict[str, float] = {**asdict(cluster), **sizes, **shape.figures(), "ideal": ideal}
    for schedule in options.schedules:
        for staleness in [0] if schedule == "sync" else options.max_staleness:
            row = run_at_scale(schedule, shape, cluster, **sizes, staleness=staleness)
            figures |= {f"{schedule}_{staleness}_{name}": found for name, found in row.items()}
            print(
                f"{schedule:16}{staleness:6}{row['episodes']:11,}{row['gpus']:10}{row['speed']:8.1f}"
                f"{row['use']:9.1%}{row['staleness']:10.2f}{row['cost']:7.2f}",
                flush=True,
            )
    print(f"ideal: {ideal:.1f} episodes/s")
    results.record("schedules_scale", figures, is_wanted=options.json)


def main() -> None:
    """Compare with real runs, or scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("compare", "scale"))
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--lengths", type=Path, help="a run folder whose turns have the lengths to simulate")
    parser.add_argument("--episodes", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES, choices=SCHEDULES)
    parser.add_argument("--max-staleness", type=int, nargs="+", default=[1, 4])
    results.add_option(parser)
    options = parser.parse_args()
    if options.what == "compare":
        missed = misses(compare(options.runs, is_recorded=options.json))
        print("missed: " + "; ".join(missed) if missed else "holds")
        raise SystemExit(bool(missed))
    shape = Shape.of(options.runs[0], options.lengths or options.runs[0])
    scale(shape, Cluster(), options)


if __name__ == "__main__":
    main()
