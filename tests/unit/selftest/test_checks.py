"""Each check of the selftest fails on a planted fault, with a sentence that says what is wrong."""

from __future__ import annotations

import os
import resource
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.records.checkpoint_manifest import check_manifest
from turnsmith.selftest import machine, training
from turnsmith.selftest.canary import perturb_checkpoint
from turnsmith.selftest.result import CheckFailed, CheckResult, CheckSkipped, SelftestResult
from turnsmith.selftest.run import Selftest
from turnsmith.selftest.throughput import judge_throughput

GOOD = {"step": 1, "grad_norm": 0.5, "policy_loss": 0.1, "rollout_diff/max": 1e-6, "time/step": 2.0}


def test_the_packages_here_are_those_that_turnsmith_needs() -> None:
    assert f"verl {metadata.version('verl')}" in machine.check_packages()


@pytest.mark.parametrize(
    ("requirement", "sentence"),
    [("verl==0.1", r"verl is .*, and turnsmith needs ==0\.1"), ("no-such-thing>=1", "no-such-thing is not installed")],
)
def test_a_wrong_version_is_named(requirement: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: [requirement, "numpy"])
    with pytest.raises(CheckFailed, match=sentence):
        machine.check_packages()


def test_an_extra_that_is_not_installed_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ['no-such-thing>=1; extra == "vllm"', "numpy"])
    assert machine.check_packages().startswith("1 packages")


def test_a_node_with_another_version_is_named() -> None:
    here = machine.versions()
    with pytest.raises(CheckFailed, match=r"verl is 0\.9\.0 on 10\.0\.0\.7 and 0\.9\.1 here"):
        machine.compare_versions(here, {"10.0.0.7": {**here, "verl": "0.9.0"}})
    with pytest.raises(CheckFailed, match="torch is missing on node"):
        machine.compare_versions(here, {"node": {name: one for name, one in here.items() if name != "torch"}})


def test_one_machine_has_no_nodes_to_compare() -> None:
    with pytest.raises(CheckSkipped, match="one machine"):
        machine.check_nodes(ConfigStore())


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    assert "GiB free" in machine.check_disk(tmp_path, need_gib=0.0)
    free = shutil.disk_usage(tmp_path).free / 2**30
    with pytest.raises(CheckFailed, match="make room there"):
        machine.check_disk(tmp_path, need_gib=free + 100)


def test_a_disk_that_refuses_to_write_is_told(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckFailed, match=r"64 MiB could not be written to .*: File too large"):
            machine.check_disk(tmp_path, need_gib=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_verl_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensordict.py").write_text("raise ImportError('planted')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(CheckFailed, match="verl cannot be imported: ImportError: planted"):
        machine.check_seams()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"grad_norm": 0.0}, "The gradient of step 1 is zero"),
        ({"grad_norm": float("nan")}, "In step 1, grad_norm is nan"),
        ({"policy_loss": float("inf")}, "policy_loss is inf"),
        ({"rollout_diff/max": 0.2}, "probabilities that differ by 0.2"),
    ],
)
def test_a_bad_step_is_told(fault: dict[str, float], sentence: str) -> None:
    assert "gradient 0.5" in training.check_step(GOOD, ConfigStore())
    with pytest.raises(CheckFailed, match=sentence):
        training.check_step({**GOOD, **fault}, ConfigStore())


def test_bfloat16_may_differ_more() -> None:
    config = apply_overrides(ConfigStore(), ["model.dtype=bfloat16"])
    assert training.check_step({**GOOD, "rollout_diff/max": 0.05}, config)


def test_a_slow_engine_and_slow_episodes_are_told() -> None:
    with pytest.raises(CheckFailed, match=r"The engine makes 3\.0 tokens/s"):
        judge_throughput(3.0, 3.0)
    with pytest.raises(CheckFailed, match=r"1,000 tokens/s alone but 100 in episodes"):
        judge_throughput(1000.0, 100.0)


@pytest.mark.parametrize("lora", [False, True])
def test_one_weight_of_a_checkpoint_is_changed_and_its_manifest_fits(lora: bool, tmp_path: Path) -> None:
    import torch

    part = tmp_path / "global_step_1" / "actor"
    part.mkdir(parents=True)
    (part / "fsdp_config.json").write_text('{"world_size": 1}')
    weights = {"model.layers.0.input_layernorm.weight": torch.ones(2), "model.norm.weight": torch.ones(2)}
    weights |= {"model.layers.0.q_proj.lora_B.default.weight": torch.zeros(2)} if lora else {}
    torch.save(weights, part / "model_world_size_1_rank_0.pt")
    name = perturb_checkpoint(part.parent)
    changed = torch.load(part / "model_world_size_1_rank_0.pt")
    assert {key for key in weights if not torch.equal(weights[key], changed[key])} == {name}
    assert ("lora_B" in name) == lora
    check_manifest(part.parent, 1, None)


def test_a_check_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    shown: list[CheckResult] = []
    test = Selftest(ConfigStore(), tmp_path, shown.append)

    def fail() -> str:
        raise CheckFailed("The moon is full.")

    assert not test._check("moon", fail)
    assert not test._check("bug", lambda: str(1 / 0))
    assert test._check("sun", lambda: "shines")
    assert [(one.name, one.status) for one in shown] == [("moon", "failed"), ("bug", "failed"), ("sun", "passed")]
    assert "ZeroDivisionError" in shown[1].text
    assert SelftestResult({}, shown).summary().startswith("2 of 3 checks failed")
