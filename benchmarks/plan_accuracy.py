"""How far `turnsmith check --plan` is off: short CPU runs of many kinds, each forecast before it is started.

The forecasts know the settings, some episodes that were played before, a measurement of this machine with the model,
and the two reference runs of `turnsmith check --plan`; none of the runs below. Prints seconds of a step, CPU seconds of
a step and memory of all processes, each as forecast and as measured, with the error, and at the end how many are within
25 % (times) and 10 % (memory). On a machine that others use too, seconds on the wall say more about the others;
`--clock cpu` then judges CPU seconds instead.

With `--folder` results are kept, and a second call goes on after the last run. About 15 minutes on two free cores.

Run, in the project's folder: python -m benchmarks.plan_accuracy [--folder F] [--clock wall|cpu] [NAME ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from benchmarks import results

from turnsmith.check.plan.cpu import CpuForecast, forecast_on_cpu, played_sample
from turnsmith.check.plan.reference import Reference, measure_reference, measured_run
from turnsmith.cli.engine import open_engine
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.spec import EnvironmentSpec

LIMITS = {"wall": 0.25, "cpu": 0.25, "memory": 0.10}
_GAME = "turnsmith.env.examples:GuessNumber"
_COMMON = "training.steps_per_epoch=4 inference.max_prompt_tokens=512 inference.max_episode_tokens=512"
CASES = {
    "one short turn": "tiny training.batch_size=8 training.group_size=4 inference.max_turns=1 inference.max_tokens=12",
    "three turns": "tiny training.batch_size=32 inference.max_turns=3 inference.max_tokens=24",
    "many episodes": "tiny training.batch_size=96 inference.max_turns=2 inference.max_tokens=12",
    "many turns": "tiny training.batch_size=16 inference.max_turns=8 inference.max_tokens=16",
    "long turns": "tiny training.batch_size=32 inference.max_turns=1 inference.max_tokens=128",
    "two passes": "tiny training.batch_size=32 inference.max_turns=2 inference.max_tokens=16 "
    "training.micro_batch_size=4 training.updates_per_batch=2",
    "worker processes": "tiny training.batch_size=24 inference.max_turns=4 inference.max_tokens=8 "
    "environment.isolation=process environment.isolation_workers=1",
    "colocate_async": "tiny training.batch_size=32 inference.max_turns=3 inference.max_tokens=24 "
    "training.schedule=colocate_async training.steps_per_epoch=7",
    "separate_async": "tiny training.batch_size=32 inference.max_turns=3 inference.max_tokens=24 "
    "training.schedule=separate_async ray.rollout_gpus_per_node=1 training.steps_per_epoch=7",
    "wider": "wide training.batch_size=16 inference.max_turns=2 inference.max_tokens=24",
    "wider, long turns": "wide training.batch_size=16 inference.max_turns=1 inference.max_tokens=96",
    "wider, colocate_async": "wide training.batch_size=16 inference.max_turns=3 inference.max_tokens=16 "
    "training.schedule=colocate_async training.steps_per_epoch=7",
    "smollm2": "smollm2 training.batch_size=8 inference.max_turns=1 inference.max_tokens=16",
    "smollm2, two turns": "smollm2 training.batch_size=8 training.group_size=4 inference.max_turns=2 "
    "inference.max_tokens=8",
}
"""Each run: its model and its settings. `wide` is `tiny` with 4.8 million parameters."""


def build_wide(folder: Path) -> Path:
    """`tiny` with more and wider layers, in a folder; its tokenizer is the same."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from turnsmith.inference.models import resolve

    wide = folder / "wide"
    if not wide.is_dir():
        made = Path(tempfile.mkdtemp(dir=folder))  # renamed when it is complete: this may be interrupted
        shutil.copytree(resolve("tiny"), made, dirs_exist_ok=True)
        sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}
        config = AutoConfig.from_pretrained(made, **sizes, num_attention_heads=4, num_key_value_heads=4, head_dim=64)
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(made)
        made.rename(wide)
    return wide


def run_case(name: str, known: Reference, folder: Path) -> dict[str, Any]:
    """Forecast a run, make it, and return both."""
    model, *settings = CASES[name].split()
    chosen = f"model.local_path={build_wide(folder)}" if model == "wide" else f"model.model_name={model}"
    own = [chosen, *_COMMON.split(), *settings]
    config = apply_overrides(ConfigStore(), own)
    game = EnvironmentSpec.of(_GAME, config.environment)
    with open_engine(config) as engine:
        sample = played_sample(config, engine, game)
    made = forecast_on_cpu(config, sample, known, game)
    skipped = 1 if config.training.schedule == "sync" else 3  # what was dispatched ahead is played by then
    began = time.monotonic()
    run = measured_run([_GAME, *own], folder, name.replace(" ", "-").replace(",", ""), skipped)
    return {
        "forecast": dataclasses.asdict(made),
        "run": dataclasses.asdict(run),
        "seconds": time.monotonic() - began,
    }


def errors(made: CpuForecast, run: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Forecast and fact of each quantity."""
    return {
        "wall": (made.step.seconds, sum(run["wall"].values())),
        "cpu": (made.cpu_seconds, sum(run["cpu"].values())),
        "memory": (made.memory["all"] / 2**30, run["memory"]["all"] / 2**30),
    }


def misses(found: dict[str, dict[str, float]], clock: str, asked: Sequence[str]) -> list[str]:
    """Runs beyond the limits or not made, in words; `found` has the relative error of each quantity of each run."""
    judged = (clock, "memory")
    return [f"{name}: not made" for name in asked if name not in found] + [
        f"{name}: {what} {off[what]:+.0%}"
        for name, off in found.items()
        for what in judged
        if abs(off[what]) > LIMITS[what]
    ]


def main() -> None:
    """Run all cases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_names(parser, CASES)
    parser.add_argument("--folder", type=Path, help="keep runs and results here")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="the times that are judged")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so long")
    results.add_option(parser)
    options = parser.parse_args()
    folder, began = (options.folder or Path(tempfile.mkdtemp())).absolute(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "reference.json"
    if not known.exists():
        known.write_text(json.dumps(dataclasses.asdict(measure_reference()), indent=1))
    reference, found = msgspec.json.decode(known.read_text(), type=Reference), dict[str, dict[str, float]]()
    print(f"{'run':24}{'s a step':>10}{'fact':>8}{'':7}{'CPU s':>8}{'fact':>8}{'':7}{'GiB':>7}{'fact':>7}")
    for name in options.names:
        file = folder / f"{name}.json"
        if not file.exists():
            if time.monotonic() - began > options.seconds:
                continue
            file.write_text(json.dumps(run_case(name, reference, folder), indent=1))
        saved = json.loads(file.read_text())
        pairs = errors(msgspec.convert(saved["forecast"], CpuForecast), saved["run"])
        found[name] = {what: made / fact - 1 for what, (made, fact) in pairs.items()}
        (wall, wall_fact), (cpu, cpu_fact), (memory, memory_fact) = pairs.values()
        off = found[name]
        print(
            f"{name:24}{wall:10.2f}{wall_fact:8.2f}{off['wall']:+7.0%}{cpu:8.2f}{cpu_fact:8.2f}{off['cpu']:+7.0%}"
            f"{memory:7.2f}{memory_fact:7.2f}{off['memory']:+7.0%}",
            flush=True,
        )
    missed = misses(found, options.clock, options.names)
    figures: dict[str, float] = {"runs": len(found)}
    for what, limit in LIMITS.items():
        within = sum(abs(off[what]) <= limit for off in found.values())
        print(f"{what}: {within} of {len(found)} within {limit:.0%}")
        figures |= {f"{what}_within": within, f"{what}_limit": limit}
        figures |= {f"{what}_lowest": min(off[what] for off in found.values())}
        figures |= {f"{what}_highest": max(off[what] for off in found.values())}
    results.record("plan_accuracy", figures, is_wanted=options.json)
    print(f"missed: {'; '.join(missed)}" if missed else f"holds in all {len(found)} runs")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
