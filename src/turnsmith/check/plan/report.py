"""A forecast as findings, as tables of a terminal and as JSON."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from turnsmith.check.finding import Check, Finding, Result
from turnsmith.check.plan.cpu import forecast_on_cpu, shape_of
from turnsmith.check.plan.forecast import StepForecast
from turnsmith.check.plan.gpu import GpuLayout, Hardware, executed_layout, layouts
from turnsmith.check.plan.reference import Reference
from turnsmith.check.plan.workload import EpisodeSample
from turnsmith.check.report import Report, table
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.text import duration
from turnsmith.trainer.config.peak_memory import MARGIN, REFUSED, WARNED, PeakMemory

_GIB = 2**30
_SHOWN = 4


STEP = Check(code="step-time", name="time of a step", why="A run that takes too long is not finished.")
MEMORY = Check(code="memory", name="memory", why="A run without memory ends in its first steps, or in its longest.")


def step_text(step: StepForecast) -> str:
    """The time of a step and of its phases.

    Example:
        >>> step_text(StepForecast("sync", 4.0, {"generate": 3.0, "rest": 1.0}, 0.125))
        '4.0 s a step, 12% idle: generate 3.0, rest 1.0'
    """
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in step.phases.items())
    return f"{duration(step.seconds)} a step, {step.idle:.0%} idle: {phases}"


def layout_lines(found: Sequence[GpuLayout], hardware: Hardware) -> list[str]:
    """What each of some layouts takes, with its settings."""
    lines = list[str]()
    for one in found:
        fits = "" if one.fits else f", DOES NOT FIT into {hardware.memory_gib:g} GiB"
        took = f"{one.gpus} GPU{'s' * (one.gpus > 1)}, {duration(one.step.seconds)} a step, {one.step.idle:.0%} idle"
        how = " (calculated)" if isinstance(one.peak, str) else ""
        update = f"{one.memory['trainer rank'] / _GIB:.1f} GiB in an update{how}"
        lines.append(f"  {took}, {update}{fits}: {' '.join(one.words())}")
    return lines


def choice_lines(found: Sequence[GpuLayout], hardware: Hardware) -> list[str]:
    """The layout to choose and the next best, or that none fits."""
    title = "the layout to choose, and the three next best:"
    if not any(one.fits for one in found):
        title = (
            "none fits, not even with the smallest micro-batches: take more GPUs, shorter episodes "
            "(inference.max_episode_tokens) or an adapter (model.lora_rank). The fastest of them:"
        )
    return [title, *layout_lines(found[:_SHOWN], hardware)]


def cpu_report(
    config: ConfigStore, sample: EpisodeSample, known: Reference, environment: EnvironmentSpec | None
) -> Report:
    """What a run takes on this machine's CPU, and whether its memory is enough."""
    import psutil

    made, steps = forecast_on_cpu(config, sample, known, environment), list[StepForecast]()
    for schedule in ("sync", "colocate_async", "separate_async"):
        one = copy.deepcopy(config)
        one.training.schedule = schedule
        is_own = schedule == config.training.schedule
        steps.append(made.step if is_own else forecast_on_cpu(one, sample, known, environment).step)
    available = psutil.virtual_memory().total
    all_of_it = f"{made.memory['all'] / _GIB:.2f} GiB of {available / _GIB:.1f}"
    memory = Finding("passed", all_of_it)
    if made.memory["all"] >= available:
        fix = (
            "Take a smaller model, shorter episodes or fewer processes (ray.num_actors, environment.isolation_workers)."
        )
        memory = Finding("failed", f"{all_of_it}: does not fit.", fix)
    sizes = {kind: f"{size / _GIB:.2f} GiB" for kind, size in made.memory.items()}
    chosen = f"memory with training.schedule={config.training.schedule}:"
    tables = [*table({step.schedule: step_text(step) for step in steps}), chosen, *table({**sizes, "all": all_of_it})]
    more = {"cpu_seconds": made.cpu_seconds, "schedules": steps}
    forecast = forecast_dict(config, "cpu", sample, made.step, made.memory, **more)
    return _report("this machine", sample, forecast, made.step, memory, tables)


def gpu_report(config: ConfigStore, sample: EpisodeSample, hardware: Hardware) -> Report:
    """What a run takes on some GPUs by their data sheets, and the layout to choose."""
    shape = shape_of(config)
    own, found = executed_layout(hardware, config, sample, shape), layouts(hardware, config, sample, shape)
    memory = gpu_finding(own, hardware, force=config.ray.force)
    steps = table({own.step.schedule: step_text(own.step)})
    tables = ["with these settings:", *layout_lines([own], hardware), *steps, *_executed_lines(own.peak)]
    tables += choice_lines(found, hardware)
    told = {**own.memory, "all": own.memory["trainer rank"]}
    forecast = forecast_dict(config, hardware.name, sample, own.step, told, layouts=found[:_SHOWN])
    subject = f"{hardware.name}, {shape.parameters:,} parameters; calculated, not verified by any run"
    return _report(subject, sample, forecast, own.step, memory, tables)


def gpu_finding(own: GpuLayout, hardware: Hardware, *, force: bool) -> Finding:
    """Refused is what execution finds far too large; what is calculated only, or near the limit, is warned of."""
    needed, is_executed = own.memory["needed"] / _GIB, not isinstance(own.peak, str)
    saw = f"{needed:.1f} GiB of {hardware.memory_gib:g} on each GPU"
    if needed <= WARNED * hardware.memory_gib and own.fits:
        return Finding("passed", saw)
    saw += f", {'executed' if is_executed else 'calculated'}: {'little is left.' if own.fits else 'does not fit.'}"
    if needed > REFUSED * hardware.memory_gib and is_executed and not force:
        return Finding("failed", saw, "Choose one of the layouts below, or go on all the same with ray.force=true.")
    return Finding("warning", saw, "Choose one of the layouts below.")


def _executed_lines(peak: PeakMemory | str) -> list[str]:
    """What the trainer's memory is made of."""
    if isinstance(peak, str):
        return [f"memory of the trainer is calculated: {peak}"]
    kinds = ", ".join(sorted({name.split(".")[1] for name in peak.operators}))
    sizes = {name: getattr(peak, name) for name in ("parameters", "gradients", "optimizer", "update", "sync", "rest")}
    sizes |= {"CUDA, NCCL, fragmentation": MARGIN}
    title = f"memory of a trainer rank: an update of {peak.tokens:,} tokens, executed without content ({kinds};"
    return [
        f"{title} experts in bfloat16, with equal shares of the tokens):",
        *table({name: f"{size / _GIB:.2f} GiB" for name, size in sizes.items()}),
    ]


def _report(
    subject: str,
    sample: EpisodeSample,
    forecast: dict[str, Any],
    step: StepForecast,
    memory: Finding,
    tables: Sequence[str],
) -> Report:
    took = Finding("passed", f"{duration(step.seconds)} with training.schedule={step.schedule}, {step.idle:.0%} idle")
    results = [Result(STEP, took, 0.0), Result(MEMORY, memory, 0.0)]
    told = f"an episode has {sample.turns:.3g} turns and {sample.prompt:.0f} + {sample.response:.0f} tokens; the \
model writes {sample.sampled:.0f} (from {sample.source})"
    return Report(subject, results, {"forecast": forecast, "sample": sample.as_dict()}, [told, *tables])


def forecast_dict(
    config: ConfigStore, hardware: str, sample: EpisodeSample, step: StepForecast, memory: dict[str, float], **more: Any
) -> dict[str, Any]:
    """The forecast as JSON."""
    from turnsmith.config_sources import to_dict

    return {
        "made": time.time(),
        "hardware": hardware,
        "verified": hardware == "cpu",
        "step_seconds": step.seconds,
        "phases": step.phases,
        "idle": step.idle,
        "memory": memory,
        "settings": to_dict(config),
        **msgspec.to_builtins(more),
    }
