"""Training step and start-up, turnsmith beside bare verl: the same model, prompts, lengths and rollout server.

Both train the `tiny` model with GRPO on one turn of up to 32 tokens, 32 episodes a step. verl runs its own
`python -m verl.trainer.main_ppo` with its own single-turn agent loop; the only thing it has of ours is the CPU plugin,
without which it does not start. They take turns, in alternating order. Prints, for the median of all rounds:

    step   ours / verl   (steps 3 to last), and the same for each phase of a step
    start  ours / verl   (from starting the process to the end of the first optimizer step)

Exits 1 if a step takes longer than verl's, or the start more than 0.8 of verl's: 0.36 to 0.77 were measured.

Run: python -m benchmarks.step_and_start [rounds] [steps]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.rounds import check_rounds, in_turn, median_ratio

from turnsmith.config import ConfigStore
from turnsmith.inference.models import resolve
from turnsmith.trainer.config.to_verl import verl_keys
from turnsmith.trainer.driver.cluster import environment_variables

_OURS = """
import sys
from turnsmith import BaseEnvironment, RayPPOTrainer
from turnsmith.config_sources import load

class Letters(BaseEnvironment):
    def reset(self):
        return "Say a"

    def step(self, action):
        return "", action.count("a") / max(len(action), 1), True, {}

RayPPOTrainer(load(sys.argv[1]), Letters).fit()
"""
_REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return solution_str.count("a") / max(len(solution_str), 1)
"""
_VERL_STEP = re.compile(r"step:\d+ ")
_VERL_TIME = re.compile(r"timing_s/(\w+):([0-9.e-]+)")
PHASES = {
    "step": "step",
    "generate": "gen",
    "old_log_prob": "old_log_prob",
    "update_actor": "update_actor",
    "sync_weights": "update_weights",
}
"""Our names of phases, and verl's."""
LIMITS = {"step": 1.0, "start": 0.8}
"""Times verl's."""


@dataclass
class Measured:
    """One run."""

    start: float
    """Seconds from starting the process to the end of the first optimizer step."""
    phases: dict[str, float]
    """Mean seconds of a step and its phases, from the third step on."""


def settings(steps: int, folder: Path) -> ConfigStore:
    """The settings of both runs."""
    config = ConfigStore()
    config.model.local_path = resolve("tiny")
    config.inference.max_tokens = config.inference.max_episode_tokens = 32
    config.inference.max_prompt_tokens = 32
    config.training.steps_per_epoch = steps
    config.checkpoint.save_interval = 0
    config.checkpoint.output_dir = str(folder)
    return config


def measure_ours(config: ConfigStore, folder: Path) -> Measured:
    """Train with turnsmith in a process of its own."""
    from turnsmith.config_sources import to_dict
    from turnsmith.records.run_folder import RunFolder
    from turnsmith.records.yaml_text import dump_yaml

    (folder / "config.yaml").write_text(dump_yaml(to_dict(config)))
    (folder / "ours.py").write_text(_OURS)
    began = time.time()
    subprocess.run([sys.executable, "ours.py", "config.yaml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    run = RunFolder.open(next(folder.glob("Letters-*")))
    steps = [event["time"] for event in run.read_events() if event.get("content") == "generate"]
    records = run.read_metrics()[2:]
    means = {phase: statistics.mean(record[f"time/{phase}"] for record in records) for phase in PHASES}
    return Measured(steps[1] - began, means)


def measure_verl(config: ConfigStore, folder: Path) -> Measured:
    """Train with verl's own main_ppo in a process of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 4 * 64
    prompt = [{"role": "user", "content": "Say a"}]
    columns = {
        "prompt": [prompt] * rows,
        "data_source": ["letters"] * rows,
        "reward_model": [{"ground_truth": "a", "style": "rule"}] * rows,
        "extra_info": [{"index": index} for index in range(rows)],
    }
    pq.write_table(pa.table(columns), folder / "train.parquet")
    (folder / "reward.py").write_text(_REWARD)
    steps = config.training.steps_per_epoch
    keys = verl_keys(config, model_path=str(config.model.local_path), run_dir=str(folder), starts="", steps=steps)
    keys |= {
        "data.train_files": str(folder / "train.parquet"),
        "data.val_files": str(folder / "train.parquet"),
        "data.custom_cls.path": None,
        "data.custom_cls.name": None,
        "actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn_agent",
        "algorithm.adv_estimator": config.training.adv_estimator,  # its own of that name, not ours
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": str(folder / "reward.py"),
        "reward.custom_reward_function.name": "compute_score",
        "trainer.logger": ["console"],
        "ray_kwargs.ray_init.num_cpus": 8,
        "+ray_kwargs.ray_init.num_gpus": 1,
        "+ray_kwargs.ray_init.include_dashboard": False,
    }
    arguments = [f"{name}={_hydra(value)}" for name, value in keys.items()]
    environment = os.environ | environment_variables(config, "cpu")
    del environment["TURNSMITH_RUN"]
    began = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "verl.trainer.main_ppo", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    start, log = 0.0, []
    times: list[dict[str, float]] = []
    for line in process.stdout:
        log.append(line)
        if _VERL_STEP.search(line) and "timing_s/step:" in line:
            start = start or time.time() - began
            times.append({name: float(spent) for name, spent in _VERL_TIME.findall(line)})
    if process.wait() or len(times) < steps:
        raise SystemExit("".join(log[-60:]))
    means = {ours: statistics.mean(one[theirs] for one in times[2:]) for ours, theirs in PHASES.items()}
    return Measured(start, means)


def _hydra(value: Any) -> str:
    return "null" if value is None else json.dumps(value).replace('"', "'") if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_plain(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def main() -> None:
    """Measure both in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("steps", type=int, nargs="?", default=12, help="at least 3: the first two are not counted")
    results.add_option(parser)
    options = parser.parse_args()
    check_rounds(parser, options)
    measures = {"verl": measure_verl, "turnsmith": measure_ours}
    runs: dict[str, list[Measured]] = {name: [] for name in measures}
    for name in in_turn(list(measures), options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            runs[name].append(measures[name](settings(options.steps, Path(folder)), Path(folder)))
        show(name, runs[name][-1])
    ratios: dict[str, float] = {}
    for part in (*PHASES, "start"):
        theirs, ours = ([{**run.phases, "start": run.start}[part] for run in each] for each in runs.values())
        ratios[part] = median_ratio(ours, theirs)
        pairs = ", ".join(f"{one:.2f} / {other:.2f} s" for one, other in zip(ours, theirs, strict=True))
        print(f"{part:13} ours / verl = {ratios[part]:.2f}, the median of {pairs}")
    figures = {name: ratios[name] for name in ("step", "start")} | {"rounds": options.rounds}
    results.record("step_and_start", figures, is_wanted=options.json)
    missed = misses(ratios)
    print("missed: " + "; ".join(missed) if missed else f"holds: at most {LIMITS} of verl's time")
    raise SystemExit(bool(missed))


def misses(ratios: dict[str, float]) -> list[str]:
    """What takes longer than allowed, of the ratios to verl's times."""
    return [f"{name}: {ratios[name]:.2f} > {limit} of verl's" for name, limit in LIMITS.items() if ratios[name] > limit]


def show(whose: str, run: Measured) -> None:
    """One line about a run."""
    print(f"{whose:9} start {run.start:6.1f} s   step {run.phases['step']:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
