"""Layouts on GPUs: calculated from data sheets, and always ones that the trainer accepts."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnsmith.check.plan.forecast import StepForecast
from turnsmith.check.plan.gpu import Hardware, gpu_memory, gpu_seconds, layouts
from turnsmith.check.plan.report import choice_lines, gpu_report
from turnsmith.check.plan.workload import EpisodeSample, EpisodeTurn
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.inference.models.shape import ModelShape
from turnsmith.trainer.config.check import check
from turnsmith.trainer.config.layout import RayDemand, check_layout
from turnsmith.trainer.config.peak_memory import PeakMemory

_SAMPLE = EpisodeSample("a test", 300, [[EpisodeTurn(200, 100, 0.5)] * 4])
_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 150_000, "intermediate_size": 12_288}
_LARGE = ModelShape.of_config({**_SIZES, "num_attention_heads": 32, "num_key_value_heads": 8})


@pytest.fixture(autouse=True)
def peak(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What execution finds, in place of executing: of each layout in turn, the last of all others."""
    found: list[Any] = ["not in this test"]

    def executed(*_: Any, **__: Any) -> Any:
        return found.pop(0) if len(found) > 1 else found[0]

    monkeypatch.setattr("turnsmith.check.plan.gpu.executed_peak", executed)
    return found


def _peak(update: float, rest: float = 10.0) -> PeakMemory:
    gib = 2**30
    return PeakMemory(
        4, 4, 8, round(update * gib), round(rest * gib), round(rest * gib), {"aten.one.default": 1}, 8, 1.0
    )


def _config(gpus: int) -> ConfigStore:
    config = ConfigStore()
    config.model.device, config.ray.gpus_per_node, config.training.batch_size = "cuda", gpus, 64
    config.model.model_name = "tiny"
    return config


def test_fused_log_probs_hold_the_logits_of_512_tokens_and_plain_ones_all() -> None:
    sample = EpisodeSample("a test", 300, [[EpisodeTurn(2772, 2772, 0.5)]])
    shape = ModelShape.of_config({**_SIZES, "hidden_size": 2560, "vocab_size": 151_936, "num_attention_heads": 32})

    def update(*, fused: bool) -> float:
        config = _config(8)
        config.training.micro_batch_tokens = 0
        config.verl = {"actor_rollout_ref.model.use_fused_kernels": fused}
        return gpu_memory(Hardware.named("H100"), config, sample, shape)["trainer rank"]

    # Counted with tensors of the meta device for 8 episodes of 3,072 tokens: 4.15 GiB at the peak of the fused path.
    without = update(fused=False) - 3 * 4 * 8 * (sample.prompt + sample.longest) * shape.vocab
    assert (update(fused=True) - without) / 2**30 == pytest.approx(4.15, abs=0.2)


def test_every_layout_is_one_that_the_trainer_accepts_and_the_fastest_comes_first() -> None:
    found = layouts(Hardware.named("H100"), _config(8), _SAMPLE, _LARGE)
    for one in found:
        check_layout(apply_overrides(_config(8), one.words()))
        assert one.gpus <= 8
    fitting = [one.step.seconds for one in found if one.fits]
    assert fitting
    assert fitting == sorted(fitting)
    assert [one.fits for one in found] == sorted((one.fits for one in found), reverse=True)
    assert {one.step.schedule for one in found} == {"sync", "colocate_async", "separate_async"}


def test_micro_batches_are_made_smaller_where_those_of_the_settings_do_not_fit() -> None:
    config = _config(8)
    config.training.micro_batch_tokens = 0
    config.verl = {"actor_rollout_ref.model.use_fused_kernels": False}
    long = EpisodeSample("a test", 1500, [[EpisodeTurn(3000, 0, 0.5)]])
    assert not gpu_memory(Hardware.named("H100"), config, long, _LARGE)["fits"]
    found = layouts(Hardware.named("H100"), config, long, _LARGE)
    chosen = apply_overrides(copy.deepcopy(config), found[0].words())
    assert 1 <= chosen.training.micro_batch_size < config.training.micro_batch_size
    assert gpu_memory(Hardware.named("H100"), chosen, long, _LARGE)["fits"]
    assert choice_lines(found, Hardware.named("H100"))[0].startswith("the layout to choose")


def test_what_does_not_fit_is_never_the_layout_to_choose() -> None:
    hardware = Hardware.named("RTX-4090")
    title, *rows = choice_lines(layouts(hardware, _config(1), _SAMPLE, _LARGE), hardware)
    assert title.startswith("none fits, not even with the smallest micro-batches: take more GPUs")
    assert rows
    assert all("DOES NOT FIT into 24 GiB" in row for row in rows)


@pytest.mark.parametrize(
    ("trainers", "servers", "most"), [((1, 8), (3, 8), {1, 4}), ((4, 2), (1, 8), {1, 4, 5})], ids=str
)
def test_nodes_of_their_own_for_generation_are_used_but_not_more_than_they_have(
    trainers: tuple[int, int], servers: tuple[int, int], most: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = StepForecast("not simulated", 1.0, {}, 0.0)
    monkeypatch.setattr("turnsmith.check.plan.gpu.forecast_step", lambda *given: step)
    config = _config(trainers[1])
    config.training.schedule, config.training.batch_size = "separate_async", 960
    config.ray.num_nodes, (config.ray.rollout_nodes, config.ray.rollout_gpus_per_node) = trainers[0], servers
    found = layouts(Hardware.named("H100"), config, _SAMPLE, _LARGE)
    total = trainers[0] * trainers[1] + servers[0] * servers[1]
    own = [one for one in found if one.settings["ray.rollout_nodes"]]
    assert {one.gpus for one in own} == {total}
    assert max(one.gpus for one in found) == total
    assert {one.settings["ray.num_nodes"] for one in found} == most
    assert len({tuple(one.words()) for one in found}) == len(found)
    for one in found:
        changed = apply_overrides(copy.deepcopy(config), one.words())
        check(changed)
        assert RayDemand.of(changed).total_gpus == one.gpus <= total
        has = [nodes for nodes, gpus in (trainers, servers) if gpus >= RayDemand.of(changed).gpus]
        assert changed.ray.num_nodes <= sum(has)


def test_tensor_parallelism_divides_the_attention_heads() -> None:
    nine = ModelShape.of_config({**_SIZES, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3})
    found = layouts(Hardware.named("H100"), _config(8), _SAMPLE, nine)
    assert {one.settings["model.tensor_parallel_size"] for one in found} == {1}


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


def test_trainer_and_engine_fit_one_gpu_only_if_they_fit_together() -> None:
    config, hardware = _config(8), Hardware.named("H100")
    assert gpu_memory(hardware, config, _SAMPLE, _LARGE)["fits"]
    config.inference.gpu_memory_utilization = 0.9
    found = gpu_memory(hardware, config, _SAMPLE, _LARGE)
    assert max(found["trainer rank"], found["rollout server"]) < 80 * 2**30
    assert not found["fits"], "the weights and moments of the trainer stay beside the engine"
    config.training.schedule = "separate_async"
    assert gpu_memory(hardware, config, _SAMPLE, _LARGE)["fits"], "on GPUs of its own"


def test_the_seconds_of_a_pass_are_its_flops_or_the_weights_that_are_gathered() -> None:
    hardware, weights = Hardware("exact", 80, 1.0, 1e3, 100), 2 * _LARGE.parameters
    alone, ranks = (gpu_seconds(hardware, _config(count), _SAMPLE, _LARGE) for count in (1, 8))
    assert ranks.send == pytest.approx(weights / (0.5 * 100e9))
    assert alone.forward == ranks.forward > ranks.send, "so slow a GPU does not wait for weights"
    assert alone.backward == pytest.approx(4 * alone.forward), "one pass is made again, two go back"
    hardware = replace(hardware, tflops=1e9)
    alone, ranks = (gpu_seconds(hardware, _config(count), _SAMPLE, _LARGE) for count in (1, 8))
    assert (ranks.forward, ranks.backward) == pytest.approx((ranks.send, 3 * ranks.send))
    assert alone.forward < 1e-3 * ranks.forward, "one rank gathers nothing"


def test_a_file_of_ones_own_adds_hardware(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("Mine: {memory_gib: 64, tflops: 100, bandwidth_gb: 1000, link_gb: 20}\n")
    assert Hardware.named("Mine", file).tflops == 100
    assert Hardware.named("H100", file) == Hardware.named("H100")
    file.write_text("Mine: {memory: 64}\n")
    with pytest.raises(Exception, match="not described as in hardware"):
        Hardware.named("Mine", file)


def test_the_report_has_counts_that_a_person_reads() -> None:
    lines = gpu_report(_config(1), _SAMPLE, Hardware.named("H100")).lines(200)
    assert lines[0].startswith("H100, 88,")
    assert "parameters; calculated, not verified by any run: 2 checks" in lines[0]
    assert [line for line in lines if line.startswith("  1 GPU, ")]


@pytest.mark.parametrize(
    ("update", "force", "status"),
    [
        (60.0, False, "passed"),
        (71.0, False, "warning"),
        (80.0, False, "warning"),
        (88.0, False, "failed"),
        (88.0, True, "warning"),
    ],
)
def test_far_more_than_the_memory_is_refused_and_nearly_all_of_it_is_warned_of(
    peak: list[Any], update: float, force: bool, status: str
) -> None:
    peak[:] = [_peak(update)]
    config = _config(1)
    config.ray.force = force
    report = gpu_report(config, _SAMPLE, Hardware.named("H100"))
    (found,) = (one.finding for one in report.results if one.check.code == "memory")
    assert found.status == status


def test_a_layout_that_execution_finds_too_large_is_not_chosen(peak: list[Any]) -> None:
    hardware = Hardware.named("H100")
    first, second, *_ = layouts(hardware, _config(8), _SAMPLE, _LARGE)
    peak[:] = [_peak(100), _peak(40)]
    found = layouts(hardware, _config(8), _SAMPLE, _LARGE)
    assert found[0].words() == second.words()
    assert not next(one for one in found if one.words() == first.words()).fits
    peak[:] = [_peak(100)]
    title, *_ = choice_lines(layouts(hardware, _config(8), _SAMPLE, _LARGE), hardware)
    assert title.startswith("none fits")


def test_what_is_not_executed_says_that_it_is_calculated(peak: list[Any]) -> None:
    lines = gpu_report(_config(1), _SAMPLE, Hardware.named("H100")).lines(200)
    assert any("memory of the trainer is calculated: not in this test" in line for line in lines)
    assert any("GiB in an update (calculated)" in line for line in lines)
    peak[:] = [_peak(60)]
    lines = gpu_report(_config(1), _SAMPLE, Hardware.named("H100")).lines(200)
    assert not any("calculated: " in line for line in lines)
    assert any(line.split()[:3] == ["update", "60.00", "GiB"] for line in lines)
