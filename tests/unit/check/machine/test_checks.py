"""The selftest's own parts: what it measures, and how it runs its checks."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from turnsmith.check.finding import Check, Finding
from turnsmith.check.machine import gpu_memory, machine
from turnsmith.check.machine.canary import perturb_checkpoint
from turnsmith.check.machine.machine import check_throughput
from turnsmith.check.machine.run import MachineChecks
from turnsmith.check.machine.short_run import ShortRun, run_settings
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError
from turnsmith.records.checkpoint_manifest import check_manifest, write_manifest
from turnsmith.trainer.config.check import check


def configured(*overrides: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), overrides)


def test_the_packages_here_are_those_that_turnsmith_needs() -> None:
    assert f"verl {metadata.version('verl')}" in machine.check_packages(configured("model.device=cpu")).saw


def test_the_settings_say_which_extra_is_needed() -> None:
    found = machine.check_packages(configured("model.device=cuda"))
    assert found.status == "failed"
    assert "turnsmith[vllm] needs" in found.saw


def test_versions_are_of_all_extras() -> None:
    assert {"python", "turnsmith", "verl", "ray", "torch", "pytest", "numpy"} <= machine.versions().keys()


def test_the_report_names_the_gpus(tmp_path: Path) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 7\n")
    assert machine.describe_machine(tmp_path)["gpus"] == ["NVIDIA H100 80GB HBM3"]


def test_one_machine_has_no_nodes_to_compare() -> None:
    assert machine.check_nodes(ConfigStore()) == Finding("skipped", "one machine (ray.address is not set)")


def test_a_disk_that_refuses_to_write_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        found = machine.check_disk(tmp_path)
        assert found.status == "failed"
        assert re.match(r"64 MiB could not be written to .*: File too large", found.saw)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "GiB are free in" in machine.check_disk(tmp_path).saw
    assert list(tmp_path.iterdir()) == []


def test_on_a_full_disk_only_its_check_fails(tmp_path: Path) -> None:
    for file in ("written", "check.log"):
        (tmp_path / file).symlink_to("/dev/full")
    findings = [
        result.finding for result in MachineChecks(ConfigStore(), tmp_path, only=["nodes", "disk"]).run().results
    ]
    assert [finding.status for finding in findings] == ["skipped", "failed"]
    assert "could not be written to" in findings[1].saw
    assert "No space left on device" in findings[1].saw


def test_an_engine_that_this_machine_cannot_start_is_skipped() -> None:
    for setting, why in (("ray.address=auto", "no GPU"), ("inference.backend=sglang", "SGLang")):
        found = check_throughput(configured(setting))
        assert found.status == "skipped"
        assert why in found.saw


def test_without_a_gpu_its_memory_is_not_measured_and_no_run_is_started(tmp_path: Path) -> None:
    with ShortRun(configured("model.device=cpu"), tmp_path) as run:
        assert run.check_memory() == Finding("skipped", "no GPU")
    assert list(tmp_path.iterdir()) == []


def test_gpu_memory_is_sampled_before_during_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used"
    (tmp_path / "torch.py").write_text(
        f"""
class cuda:
    device_count = lambda: 2
    mem_get_info = lambda gpu: ((8 << 30) - (int(open({str(used)!r}).read() or 0) << 30), 8 << 30)
"""
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    used.write_text("4")

    def step() -> None:
        import time

        for gib in ("1", "5"):
            new = tmp_path / "new"
            new.write_text(gib)
            new.replace(used)
            time.sleep(0.3)

    samples = gpu_memory.sampled_while(step)
    assert (samples[0], min(samples), samples[-1]) == (8.0, 2.0, 10.0)  # of both GPUs together


def test_a_run_that_failed_is_not_started_again(tmp_path: Path) -> None:
    with ShortRun(configured("model.model_name=no-such-model"), tmp_path) as run:
        with pytest.raises(Exception, match="no-such-model"):
            run.check_steps()
        assert run.check_weights_arrive() == Finding("skipped", "its run failed above")


@pytest.mark.parametrize(
    "theirs",
    [
        ["training.mini_batch_size=256", "training.batch_size=512", "ray.num_nodes=4", "ray.gpus_per_node=8"],
        ["training.lr_schedule=cosine", "training.warmup_steps=20"],
        ["training.schedule=separate_async", "ray.rollout_nodes=2"],
        ["training.schedule=separate_async", "ray.rollout_gpus_per_node=2"],
        ["logging.trackers=[no_such_tracker]", "checkpoint.run_name=mine", "evaluation.every=1"],
        ["environment.board_size=3", "inference.max_tool_calls=512", "inference.temperature=0.7"],
    ],
)
def test_short_runs_can_start_with_the_settings_of_a_long_one(theirs: list[str], tmp_path: Path) -> None:
    config = ConfigStore()
    for override in theirs:  # what only the machine of the run has is not checked here
        section, _, rest = override.partition(".")
        if section == "logging":
            config.logging.trackers = ["no_such_tracker"]  # pyright: ignore[reportAttributeAccessIssue]
        else:
            apply_overrides(config, [f"{section}.{rest}"])
    for special in ([], ["training.adv_estimator=gae"], ["model.lora_rank=8"]):
        own = run_settings(config, tmp_path, *special)
        check(own)
        assert (own.ray.num_nodes, own.ray.gpus_per_node) == (config.ray.num_nodes, config.ray.gpus_per_node)


@pytest.mark.parametrize("lora", [False, True])
def test_one_weight_of_a_checkpoint_is_changed_and_its_manifest_fits(lora: bool, tmp_path: Path) -> None:
    import torch

    part = tmp_path / "global_step_1" / "actor"
    part.mkdir(parents=True)
    (part / "fsdp_config.json").write_text('{"world_size": 2}')
    weights = {"model.layers.0.input_layernorm.weight": torch.ones(2), "model.norm.weight": torch.ones(2)}
    weights |= {"model.layers.0.q_proj.lora_B.default.weight": torch.zeros(2)} if lora else {}
    for rank in range(2):
        torch.save(weights, part / f"model_world_size_2_rank_{rank}.pt")
    write_manifest(part.parent, 1, None)
    name = perturb_checkpoint(part.parent)
    for rank in range(2):
        changed = torch.load(part / f"model_world_size_2_rank_{rank}.pt")
        assert {key for key in weights if not torch.equal(weights[key], changed[key])} == {name}
    assert ("lora_B" in name) == lora
    assert check_manifest(part.parent, 1, None) is False


MOON = Check(code="moon", name="moon", why="Tides.")


def fail() -> Finding:
    sys.stdout.write("out\n")
    sys.stderr.write("err\n")
    return Finding("failed", "The moon is full.")


@pytest.mark.parametrize(
    ("planted", "status", "text"),
    [
        (fail, "failed", "The moon is full."),
        (lambda: Finding("passed", str(1 / 0)), "failed", "ZeroDivisionError: division by zero"),
        (lambda: Finding("skipped", "no moon"), "skipped", "no moon"),
    ],
)
def test_how_a_check_ends(
    planted: Callable[[], Finding], status: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = MachineChecks(ConfigStore(), tmp_path).run_logged(MOON, planted)
    assert (result.check, result.finding.status) == (MOON, status)
    assert text in result.finding.saw
    assert capsys.readouterr() == ("", "")
    log = (tmp_path / "check.log").read_text()
    assert log.startswith("== moon\n")
    assert ("out\nerr\n" in log) == (planted is fail)
    assert ("Traceback" in log) == ("Zero" in text)


def test_only_the_named_checks_run_and_are_announced(tmp_path: Path) -> None:
    said = list[str]()
    report = MachineChecks(ConfigStore(), tmp_path, said.append, ["nodes", "disk"]).run()
    assert [result.check.code for result in report.results] == said == ["nodes", "disk"]
    assert report.as_dict()["settings"].keys() == {"model", "inference", "ray"}
    assert report.as_dict()["machine"]["versions"]["verl"]


def test_a_check_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no check 'GRPO': choose from packages, .*grpo"):
        MachineChecks(ConfigStore(), tmp_path, only=["GRPO"])
