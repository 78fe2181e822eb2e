"""`turnsmith plan`: forecast the memory and the time of a run."""

from __future__ import annotations

import argparse
import copy
import json
import sys
from typing import TYPE_CHECKING, Any

from turnsmith.cli.agent import add_agent_options, chosen_environment, read_data, split_agent_options
from turnsmith.terminal import hide_progress_bars, print_line

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore
    from turnsmith.plan.workload import EpisodeSample

_DESCRIPTION = """\
Forecast a run before it is started: memory of every kind of process, seconds of
a step by phase, for each schedule, and on GPUs the layout to choose, the three
next best and what they cost.

On this machine's CPU the forecast is measured: `tiny` is trained for two
minutes the first time, then the run's model for some seconds. GPUs are
calculated from data sheets, which no run has verified."""

_EXAMPLES = """\
examples:
  turnsmith plan my_game.py:MyGame --model tiny --json forecast.json
  turnsmith train my_game.py:MyGame --model tiny training.plan=forecast.json
  turnsmith plan --from runs/my-run --hardware H100 ray.gpus_per_node=8 \\
    --model Qwen/Qwen3-8B"""


def add_plan_command(commands: Any) -> None:
    """Add `turnsmith plan` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan", help="forecast the memory and the time of a run", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as training.batch_size=16")
    add("--model", metavar="MODEL", help="the model to train, as in `turnsmith train`")
    add("--config", metavar="FILE", help="YAML file with the settings of the run")
    add("--hardware", metavar="NAME", default="cpu", help="cpu (this machine, the default), H100, A100-80, ...")
    add("--hardware-file", metavar="FILE", help="YAML file with GPUs of your own, like turnsmith/plan/hardware.yaml")
    told = (
        "take tokens, turns and times from this run folder, or from a file of `turnsmith check --model M --json FILE`"
    )
    add("--from", metavar="PATH", dest="source", help=told)
    add("--calibrate", action="store_true", help="measure this machine again")
    add("--json", metavar="FILE", help="write the forecast here, for training.plan")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Forecast, print and write."""
    from turnsmith.cli.train import read_config
    from turnsmith.records.files import write_for_user
    from turnsmith.trainer.config.check import check

    split_agent_options(args, required=args.source is None)
    config = read_config(args.config, args.model, args.overrides)
    config.model.device = "cpu" if args.hardware == "cpu" else "cuda"
    check(config)
    hide_progress_bars()
    found = _on_cpu(args, config) if args.hardware == "cpu" else _on_gpus(args, config)
    if args.json is not None:
        write_for_user(args.json, json.dumps(found, indent=1) + "\n")
    return 0


def _on_cpu(args: argparse.Namespace, config: ConfigStore) -> dict[str, Any]:
    import psutil

    from turnsmith.cli.engine import open_engine
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.plan.cpu import forecast_on_cpu, played_sample
    from turnsmith.plan.reference import reference
    from turnsmith.plan.report import forecast_dict, memory_lines, step_lines
    from turnsmith.plan.workload import EpisodeSample

    environment = None
    if args.mix or args.environment or args.agent or args.data:
        environment = EnvironmentSpec.of(chosen_environment(args, config), config.environment)
    print_line("measuring this machine ...", sys.stdout)
    known = reference(fresh=args.calibrate)
    if environment is None or args.source is not None:
        sample = EpisodeSample.of_file(args.source)
    else:
        with open_engine(config) as engine:
            sample = played_sample(config, engine, environment, read_data(args))
    _show_sample(sample)
    made, steps = forecast_on_cpu(config, sample, known, environment), []
    for schedule in ("sync", "colocate_async", "separate_async"):
        one = copy.deepcopy(config)
        one.training.schedule = schedule
        same = schedule == config.training.schedule
        steps.append(made.step if same else forecast_on_cpu(one, sample, known, environment).step)
    chosen = f"training.schedule={config.training.schedule}"
    lines = [*step_lines(steps), f"memory with {chosen}", *memory_lines(made.memory, psutil.virtual_memory().total)]
    print_line("\n".join(lines), sys.stdout)
    more = {"cpu_seconds": made.cpu_seconds, "schedules": steps}
    return forecast_dict(config, "cpu", sample, made.step, made.memory, **more)


def _on_gpus(args: argparse.Namespace, config: ConfigStore) -> dict[str, Any]:
    from turnsmith.plan.cpu import shape_of
    from turnsmith.plan.gpu import Hardware
    from turnsmith.plan.layouts import forecast_layout, layouts
    from turnsmith.plan.report import choice_lines, forecast_dict, layout_lines, step_lines
    from turnsmith.plan.workload import EpisodeSample

    hardware = Hardware.named(args.hardware, args.hardware_file)
    sample = EpisodeSample.of_settings(config) if args.source is None else EpisodeSample.of_file(args.source)
    shape = shape_of(config)
    _show_sample(sample)
    own, found = forecast_layout(hardware, config, sample, shape), layouts(hardware, config, sample, shape)
    lines = [f"{hardware.name}, {shape.parameters / 1e9:.3g} billion parameters; calculated, not verified by any run"]
    lines += ["with these settings:", *layout_lines([own], hardware), *step_lines([own.step])]
    lines += choice_lines(found, hardware)
    print_line("\n".join(lines), sys.stdout)
    memory = {**own.memory, "all": own.memory["trainer rank"]}
    return forecast_dict(config, hardware.name, sample, own.step, memory, price=own.price, layouts=found[:4])


def _show_sample(sample: EpisodeSample) -> None:
    told = f"an episode has {sample.turns:.3g} turns and {sample.prompt:.0f} + {sample.response:.0f} tokens"
    print_line(f"{told}, of which the model writes {sample.sampled:.0f} (from {sample.source})", sys.stdout)
