"""The scaled settings keep what matters about a run, and everything that was changed or left out is said."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.unit.trainer.gpu_layouts import LAYOUTS, Layout

from turnsmith.check.rehearse.run import Rehearsal
from turnsmith.check.rehearse.scale import StandIn, changed_settings, not_executed, scaled_config
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.trainer.config.check import check
from turnsmith.trainer.config.layout import RayDemand

CLUSTER = "ray.address=auto ray.num_nodes=4 ray.gpus_per_node=8 model.tensor_parallel_size=2"


def settings(*more: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), [*CLUSTER.split(), *more])


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
def test_every_layout_scales_to_settings_that_are_accepted(
    layout: Layout, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnsmith.trainer.config.check.has_flash_attention", lambda: True)  # as on the cluster
    config = apply_overrides(ConfigStore(), layout.settings())
    small = scaled_config(config, gpus)
    if small.model.device != "cpu":  # as if they were here
        small.model.device = "cuda"
        assert RayDemand.of(small).total_gpus <= gpus
    check(small)
    assert small.training.schedule == config.training.schedule
    assert small.training.group_size == config.training.group_size
    assert small.ray.gpus_per_node <= max(2, gpus)


@pytest.mark.parametrize(("mini", "updates"), [(None, 1), (512, 1), (256, 2), (64, 8)])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_updates_of_a_step_and_groups_stay(mini: int | None, updates: int, group: int) -> None:
    config = settings("training.batch_size=512", f"training.group_size={group}")
    config.training.mini_batch_size = mini
    small = scaled_config(config).training
    assert small.batch_size // (small.mini_batch_size or small.batch_size) == updates
    assert small.batch_size >= 2 * group


def test_a_run_with_very_many_updates_gets_fewer() -> None:
    config = settings("training.batch_size=8192", "training.mini_batch_size=128", "training.group_size=64")
    small = scaled_config(config).training
    assert small.mini_batch_size == 64
    assert small.batch_size == 128
    assert small.batch_size // small.mini_batch_size < 8192 // 128


def test_what_the_user_decided_stays() -> None:
    kept = "failures.environment=mask training.schedule=colocate_async environment.isolation=process model.lora_rank=4"
    config = settings(*kept.split(), "training.learning_rate=3e-5", "evaluation.every=20", "training.batch_size=512")
    small = scaled_config(config)
    changed = changed_settings(config, small)
    names = [word.partition("=")[0] for word in kept.split()]
    assert not {*names, "training.learning_rate", "training.group_size"} & changed.keys()
    assert changed["ray.num_nodes"] == (4, 1)
    assert changed["evaluation.every"] == (20, 2)


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("evaluation.every=0", "evaluation"),
        ("checkpoint.save_interval=0", "checkpoint and resume"),
        ("logging.trackers=[wandb]", "the trackers wandb"),
        ("training.filter_groups=true", "training.filter_groups"),
        ("model.tensor_parallel_size=4", "model.tensor_parallel_size=4"),
        ("ray.num_nodes=8", "8 nodes"),
        ("inference.backend=sglang", "the engine sglang"),
    ],
)
def test_what_could_not_be_executed_is_said_with_its_reason(setting: str, what: str) -> None:
    config = settings("evaluation.every=5", "training.batch_size=512", setting)
    missing = not_executed(config, scaled_config(config), "my/model")
    assert missing[what]
    assert "GPU memory, CUDA kernels, NCCL" in missing
    plain = apply_overrides(ConfigStore(), ["model.device=cpu", "evaluation.every=1"])
    assert what not in not_executed(plain, scaled_config(plain), "my/model")


class Scaled(Exception):
    """What would be executed."""


def executed(config: ConfigStore, monkeypatch: pytest.MonkeyPatch, folder: Path, *, within_reach: bool) -> ConfigStore:
    """The settings of the scaled run on a machine with eight GPUs."""

    def stop(small: ConfigStore, *others: object) -> None:
        raise Scaled(small)

    tiny = StandIn("tiny", Mock(), Mock(), "tiny" if within_reach else None, 0)
    monkeypatch.setattr("turnsmith.check.rehearse.run.auto_device", lambda: "cuda")
    monkeypatch.setattr("turnsmith.trainer.driver.preflight._count_gpus", lambda: 8)
    monkeypatch.setattr("turnsmith.check.rehearse.run.KilledRun", stop)
    monkeypatch.setattr(Rehearsal, "_before", lambda self: tiny)
    with pytest.raises(Scaled) as caught:
        Rehearsal(config, "my_game:MyGame", [], folder).run()
    return caught.value.args[0]


def test_a_run_on_cpus_is_rehearsed_on_two_ranks_whatever_this_machine_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpus = settings("model.device=cpu", "model.tensor_parallel_size=1")
    assert executed(cpus, monkeypatch, tmp_path, within_reach=True).ray.gpus_per_node == 2
    assert executed(settings(), monkeypatch, tmp_path, within_reach=True).ray.gpus_per_node == 8


@pytest.mark.parametrize(("within_reach", "kept"), [(True, (False, "native")), (False, (None, "function_calling"))])
def test_what_the_template_of_tiny_cannot_do_is_not_asked_of_it(
    within_reach: bool, kept: tuple[bool | None, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = settings("inference.thinking=false", "inference.tool_format=native")
    inference = executed(config, monkeypatch, tmp_path, within_reach=within_reach).inference
    assert (inference.thinking, inference.tool_format) == kept
