"""A forecast as lines of a terminal and as the JSON that `training.plan` reads."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.plan.forecast import StepForecast
from turnsmith.plan.gpu import Hardware
from turnsmith.plan.layouts import GpuLayout
from turnsmith.plan.workload import EpisodeSample
from turnsmith.text import duration

_GIB = 2**30
_SHOWN = 4


def step_lines(steps: Sequence[StepForecast]) -> list[str]:
    """A row for each schedule.

    Example:
        >>> print(*step_lines([StepForecast("sync", 4.0, {"generate": 3.0, "rest": 1.0}, 0.125)]), sep="\\n")
        schedule             step   generate   old_log_prob  update_actor  sync_weights      rest   idle
        sync                4.0 s       3.0              -             -             -       1.0    12%
    """
    names = {"generate": 11, "old_log_prob": 15, "update_actor": 14, "sync_weights": 14, "rest": 10}
    lines = [f"{'schedule':16}{'step':>9}" + "".join(f"{name:>{width}}" for name, width in names.items()) + "   idle"]
    for step in steps:
        cells = [f"{step.phases[n]:.1f}" if n in step.phases else "-" for n in names]
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, names.values(), strict=True))
        lines.append(f"{step.schedule:16}{duration(step.seconds):>9}{row}{step.idle:>7.0%}")
    return lines


def memory_lines(memory: dict[str, float], available: float) -> list[str]:
    """A row for each kind of process, and whether all fit into so many bytes."""
    rows = [f"  {kind:22}{size / _GIB:8.2f} GiB" for kind, size in memory.items() if kind != "all"]
    verdict = "fits" if memory["all"] < available else "DOES NOT FIT"
    return [*rows, f"  {'all':22}{memory['all'] / _GIB:8.2f} GiB of {available / _GIB:.1f}: {verdict}"]


def layout_lines(found: Sequence[GpuLayout], hardware: Hardware) -> list[str]:
    """The first of some layouts."""
    lines = [f"{'GPUs':>4}  {'step':>8} {'idle':>5} {'$/1000 episodes':>16} {'update GiB':>11}  settings"]
    for one in found[:_SHOWN]:
        fits = "" if one.fits else f"   DOES NOT FIT into {hardware.memory_gib:g} GiB"
        lines.append(
            f"{one.gpus:>4}  {duration(one.step.seconds):>8} {one.step.idle:>5.0%} {one.price:>16.2f} "
            f"{one.memory['trainer rank'] / _GIB:>11.1f}  {' '.join(one.words())}{fits}"
        )
    return lines


def choice_lines(found: Sequence[GpuLayout], hardware: Hardware) -> list[str]:
    """The layout to choose and the next best, or that none fits."""
    title = "the layout to choose, and the three next best:"
    if not any(one.fits for one in found):
        title = (
            "none fits, not even with training.micro_batch_size=1: take more GPUs, shorter episodes "
            "(inference.max_episode_tokens) or an adapter (model.lora_rank). The fastest of them:"
        )
    return [title, *layout_lines(found, hardware)]


def forecast_dict(
    config: ConfigStore, hardware: str, sample: EpisodeSample, step: StepForecast, memory: dict[str, float], **more: Any
) -> dict[str, Any]:
    """For the JSON file."""
    from turnsmith.config_sources import to_dict

    return {
        "made": time.time(),
        "hardware": hardware,
        "verified": hardware == "cpu",
        "step_seconds": step.seconds,
        "phases": step.phases,
        "idle": step.idle,
        "memory": memory,
        "sample": sample.as_dict(),
        "settings": to_dict(config),
        **{name: _plain(value) for name, value in more.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
