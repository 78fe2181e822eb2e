"""Layouts on GPUs: calculated from data sheets, and always ones that the trainer accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.models.shape import ModelShape
from turnsmith.plan.gpu import Hardware, gpu_memory
from turnsmith.plan.layouts import layouts
from turnsmith.plan.workload import EpisodeSample, EpisodeTurn
from turnsmith.trainer.config.layout import check_layout

_SAMPLE = EpisodeSample("a test", 300, [[EpisodeTurn(200, 100, 0.5)] * 4])
_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 150_000, "intermediate_size": 12_288}
_LARGE = ModelShape.of_config({**_SIZES, "num_attention_heads": 32, "num_key_value_heads": 8})


def _config(gpus: int) -> ConfigStore:
    config = ConfigStore()
    config.model.device, config.ray.gpus_per_node, config.training.batch_size = "cuda", gpus, 64
    return config


def test_every_layout_is_one_that_the_trainer_accepts_and_the_fastest_comes_first() -> None:
    found = layouts(Hardware.named("H100"), _config(8), _SAMPLE, _LARGE)
    for one in found:
        settings = [f"{name}={value}" for name, value in one.settings.items()]
        check_layout(apply_overrides(_config(8), settings))
        assert one.gpus <= 8
    fitting = [one.step.seconds for one in found if one.fits]
    assert fitting
    assert fitting == sorted(fitting)
    assert [one.fits for one in found] == sorted((one.fits for one in found), reverse=True)
    assert {one.step.schedule for one in found} == {"sync", "colocate_async", "separate_async"}


def test_eight_billion_parameters_do_not_fit_one_gpu_but_their_adapter_does() -> None:
    hardware = Hardware.named("H100")
    assert _LARGE.parameters > 7e9
    assert not gpu_memory(hardware, _config(1), _SAMPLE, _LARGE)["fits"]
    assert gpu_memory(hardware, _config(8), _SAMPLE, _LARGE)["fits"]
    adapter = _config(1)
    adapter.model.lora_rank = 16
    alone = gpu_memory(hardware, adapter, _SAMPLE, _LARGE)["trainer rank"]
    assert alone < 80 * 2**30
    adapter.training.adv_estimator = "gae"  # its critic has no adapter
    both = gpu_memory(hardware, adapter, _SAMPLE, _LARGE)["trainer rank"]
    assert both - alone == pytest.approx(16 * _LARGE.parameters)


def test_a_file_of_ones_own_adds_hardware(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("Mine: {memory_gib: 64, tflops: 100, bandwidth_gb: 1000, link_gb: 20, price: 0.1}\n")
    assert Hardware.named("Mine", file).price == 0.1
    assert Hardware.named("H100", file) == Hardware.named("H100")
    file.write_text("Mine: {memory: 64}\n")
    with pytest.raises(Exception, match="not described as in hardware"):
        Hardware.named("Mine", file)
