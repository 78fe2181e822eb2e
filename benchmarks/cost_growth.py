"""What a step costs the task runner's process as the batch grows: CPU time per token and peak memory.

A real run without a model (`benchmarks/model_free.py`): scripted episodes of about 4,000 tokens in two episode workers,
10^5, 10^6 and 10^7 tokens a batch. What counts is the CPU time of all threads of the task runner, the one process that
sees the whole batch, from dispatch to the step's record; waiting for episodes and for the ranks is not in it. Beside it
verl's own trainer does the same steps in the same process, with its estimator and without our ledger, records and
metrics. Of several steps the cheapest counts. Memory is what the process has grown by at its peak within a step.

With `--local` there is no Ray, and TransferQueue is a dictionary in the same process: what it costs to send and receive
is left out, for both, and so are the processes around. That takes a minute, with Ray it is five.

The slope is that of a line through the logarithms: 1 is linear. The figures at 10^9 tokens are that line continued,
which says what one process would need, not that it was run. Constant costs flatten the line over the smallest batches,
so the slope of the last two is shown as well. Exits 1 if turnsmith's slope is more than `LIMIT` above verl's,
of all points or of the last two.

Run, in the project's folder: python -m benchmarks.cost_growth [--quick] [--local]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks import model_free, results

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.trainer.driver.cluster import environment_variables

LIMIT = 0.05
SIZES = {100_000: 4, 1_000_000: 3, 10_000_000: 1}
"""Tokens of a batch, and steps."""
FAR = 1_000_000_000
GROUP = 8
TOKENS = 4_000
"""Of an episode, about."""
Measure = Callable[[str, int, int], list[dict[str, Any]]]
"""Makes steps (`turnsmith` or `verl`, episodes of a batch, number of steps); what each of them cost."""


def trainer_in(folder: str) -> RayPPOTrainer:
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens, config.inference.max_turns = model_free.SAID, model_free.TURNS + 1
    config.inference.max_episode_tokens = 2 * TOKENS
    config.environment.isolation = "loop"
    config.training.group_size = config.training.batch_size = GROUP
    config.checkpoint.output_dir, config.checkpoint.run_name, config.checkpoint.save_interval = folder, "growth", 0
    config.ray.num_actors = 2
    return RayPPOTrainer(config, model_free.Talk)


@contextmanager
def run_on_ray(trainer: RayPPOTrainer) -> Generator[Measure]:
    """Measures in the task runner of a run."""
    import ray

    from turnsmith.trainer.verl import task_runner, transformers_server

    task_runner.TaskRunner = model_free.MeasuredTaskRunner  # type: ignore[misc]
    transformers_server.start_servers_early = lambda *args: []
    try:
        trainer._start(1, 1)
        yield lambda *what: ray.get(trainer._runner.measure.remote(*what))
    finally:
        trainer.cleanup()


@contextmanager
def run_here(trainer: RayPPOTrainer) -> Generator[Measure]:
    """Measures in this process, without Ray."""
    os.environ.update(environment_variables(trainer.config, "cpu"))
    from benchmarks.local_task_runner import LocalTaskRunner

    yield LocalTaskRunner(trainer).measure


def measure_all(measure: Measure, sizes: dict[int, int]) -> list[dict[str, Any]]:
    """What the cheapest step of each size cost, ours and verl's."""
    found: list[dict[str, Any]] = []
    for tokens, steps in sizes.items():
        for kind in (model_free.OWN, model_free.THEIRS):
            episodes = max(1, tokens // TOKENS // GROUP) * GROUP
            least = min(measure(kind, episodes, steps), key=lambda step: sum(step["cpu_seconds"].values()))
            found.append({"kind": kind, "episodes": episodes, **least})
            show([found[-1]], {})
    return found


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line through the logarithms with the least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle_x, middle_y = (sum(part) / len(logs) for part in zip(*logs, strict=True))
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / sum((x - middle_x) ** 2 for x, _ in logs)


def continued(points: list[tuple[float, float]], to: float) -> float:
    """The value of that line at `to`, through the last point."""
    x, y = points[-1]
    return y * (to / x) ** slope(points)


def growth(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Slopes and figures at `FAR`, of the runs of one kind."""
    cpu = [(run["tokens"], sum(run["cpu_seconds"].values())) for run in found]
    memory = [(run["tokens"], max(1, run["memory_peak"] - run["memory_before"])) for run in found]
    return {
        "cpu_slope": slope(cpu),
        "cpu_slope_of_the_last_two": slope(cpu[-2:]),
        "memory_slope_of_the_last_two": slope(memory[-2:]),
        "cpu_seconds_far": continued(cpu, FAR),
        "memory_far": continued(memory, FAR),
    }


def show(found: list[dict[str, Any]], grown: dict[str, Any]) -> None:
    for run in found:
        cpu, more = sum(run["cpu_seconds"].values()), run["memory_peak"] - run["memory_before"]
        print(
            f"{run['kind']:9} {run['tokens']:>10,} tokens: {cpu:7.2f} s CPU, {cpu / run['tokens'] * 1e6:5.2f} us a "
            f"token; memory +{more / 2**20:6.0f} MiB to {run['memory_peak'] / 2**20:6.0f}"
        )
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in run["cpu_seconds"].items())
        print(f"          {phases}; one poll while episodes run {run['poll_cpu_seconds']:.3f}")
    for kind, one in grown.items():
        print(
            f"{kind:9} slope of CPU time {one['cpu_slope']:.2f}, of the last two {one['cpu_slope_of_the_last_two']:.2f}"
            f", of memory {one['memory_slope_of_the_last_two']:.2f}; at {FAR:.0e} tokens "
            f"{one['cpu_seconds_far'] / 60:.0f} min CPU and {one['memory_far'] / 2**30:.0f} GiB in one process"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without 10^7 tokens")
    parser.add_argument("--local", action="store_true", help="without Ray: TransferQueue is a dictionary")
    results.add_option(parser)
    options = parser.parse_args()
    sizes = dict(list(SIZES.items())[: 2 if options.quick else 3])
    run = run_here if options.local else run_on_ray
    with tempfile.TemporaryDirectory() as folder, run(trainer_in(folder)) as measure:
        found = measure_all(measure, sizes)
    kinds = (model_free.OWN, model_free.THEIRS)
    grown = {kind: growth([one for one in found if one["kind"] == kind]) for kind in kinds}
    show([], grown)
    figures = {f"{kind}_slope": grown[kind]["cpu_slope"] for kind in kinds}
    figures |= {f"{kind}_last_slope": grown[kind]["cpu_slope_of_the_last_two"] for kind in kinds}
    for run in found:
        place = f"{run['kind']}_{run['episodes'] * TOKENS:.0e}".replace("e+0", "e")
        figures[f"{place}_cpu"] = sum(run["cpu_seconds"].values())
        figures[f"{place}_mib"] = (run["memory_peak"] - run["memory_before"]) / 2**20
    results.record("cost_growth", figures, is_wanted=options.json)
    missed = misses(figures)
    print("missed: " + "; ".join(missed) if missed else f"holds: slopes of CPU time at most {LIMIT} above verl's")
    raise SystemExit(bool(missed))


def misses(figures: dict[str, float]) -> list[str]:
    """The slopes that are too far above verl's, of those that are published."""
    steeper = {name: figures[f"turnsmith_{name}"] - figures[f"verl_{name}"] for name in ("slope", "last_slope")}
    return [f"{name} of CPU time: {more:+.3f} against verl's" for name, more in steeper.items() if more > LIMIT]


if __name__ == "__main__":
    main()
