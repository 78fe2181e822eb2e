"""What a run on GPUs needs and a machine lacks is a sentence before anything starts; honest machines pass."""

from __future__ import annotations

import importlib.util
import os
import resource
import time
from pathlib import Path

import pytest
import yaml
from tests.unit.trainer.gpu_machines import CLUSTER, EIGHT_H100, ENOUGH, QWEN3, TOO_LITTLE, Case, here, nodes

from turnsmith.cli.main import main
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.examples import GuessNumber
from turnsmith.errors import ConfigError
from turnsmith.trainer import RayPPOTrainer
from turnsmith.trainer.driver import gpu_preflight, machine_facts, preflight
from turnsmith.trainer.driver.gpu_preflight import TABLE, check_gpus, lacks, model_shape
from turnsmith.trainer.driver.machine_facts import Gpu, Machine, cuda_of_torch, read_machine

DOCS = Path(__file__).parents[3] / "docs" / "running-on-a-cluster.md"


def configured(*overrides: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), ["model.device=cuda", "model.attn_implementation=sdpa", *overrides])


def said(case: Case) -> dict[str, bool]:
    return lacks(configured(*case.settings.split()), case.machines, QWEN3[case.model], steps=10)


@pytest.mark.parametrize("case", TOO_LITTLE, ids=lambda case: case.name)
def test_a_machine_that_lacks_something_is_refused_with_the_sentence(case: Case) -> None:
    assert said(case) == {case.refused: True}


@pytest.mark.parametrize("case", ENOUGH, ids=lambda case: case.name)
def test_of_a_machine_that_has_enough_nothing_is_said(case: Case) -> None:
    assert said(case) == {}


def test_every_row_of_the_table_refuses_a_machine() -> None:
    refused = [case.refused for case in TOO_LITTLE]
    begins = {code: row["sentence"].partition("{machine.name}, ")[2].partition("{")[0] for code, row in TABLE.items()}
    missing = [code for code, text in begins.items() if text and not any(text in sentence for sentence in refused)]
    assert missing == ["capability"] or not missing  # its sentence begins with the card's name


def test_a_node_too_many_may_lack_something_and_is_told() -> None:
    config = configured(*CLUSTER.split(), "ray.num_nodes=2", "training.batch_size=64")
    found = lacks(config, (*nodes(2), *here(name="10.0.0.9", driver="535.1")), QWEN3["0.6B"])
    assert [(words[:12], is_refused) for words, is_refused in found.items()] == [("On 10.0.0.9,", False)]


def test_nearly_full_cards_are_warned_of() -> None:
    config = configured("inference.gpu_memory_utilization=0.05")
    said = lacks(config, here(gpus=(Gpu("a card", 64 * 2.0**30, 9.0),)), QWEN3["4B"])
    assert [is_refused for one, is_refused in said.items() if "an update needs at least 59.9 GiB" in one] == [False]


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This machine, with a GPU and a driver that is too old for its torch."""
    old = Machine("this machine", "550.54.15", "13.0", EIGHT_H100.gpus[:1], 2.0**36, 65536, 2.0**40)
    monkeypatch.setattr(gpu_preflight, "read_machine", lambda *given, **named: old)
    monkeypatch.setattr(preflight, "_count_gpus", lambda: 1)
    return tmp_path


def test_training_on_an_old_driver_is_refused_before_ray_starts_and_without_a_run_folder(
    gpu_machine: Path, tiny_folder: str
) -> None:
    import ray

    config = configured(f"model.local_path={tiny_folder}", f"checkpoint.output_dir={gpu_machine}/runs")
    with pytest.raises(ConfigError, match=r"driver is 550\.54\.15, .* CUDA 13\.0, which needs 580\.65 or later"):
        RayPPOTrainer(config, GuessNumber).fit()
    assert not ray.is_initialized()
    assert not (gpu_machine / "runs").exists()
    told = list[str]()
    config.ray.force = True
    check_gpus(config, tiny_folder, told.append, 10)
    assert [one[:40] for one in told] == ["On this machine, NVIDIA's driver is 550."]


def test_a_dry_run_for_gpus_says_what_they_get_before_the_settings(
    gpu_machine: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "turnsmith.env.examples:GuessNumber", "training.check=false", "--dry-run"]
    words += [f"model.local_path={tiny_folder}", f"checkpoint.output_dir={gpu_machine}"]
    assert main([*words, "ray.gpus_per_node=8"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].endswith("vllm on cuda, fused log-probs")
    assert lines[1] == "# 1 node, 8 ranks, 8 servers of vllm, 4 episode workers"
    assert lines[2].startswith("# each GPU: 0.1")
    assert "# refused: On this machine, NVIDIA's driver is 550.54.15" in lines[3]
    assert lines[4] == "# turnsmith: all settings"
    settings, theirs = yaml.safe_load_all(printed)
    assert settings["model"]["device"] == theirs["trainer"]["device"] == "cuda"


def test_without_a_gpu_a_dry_run_for_several_says_what_they_would_get(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["train", "turnsmith.env.examples:GuessNumber", "training.check=false", "--dry-run", "--model", "tiny"]
    words.append(f"checkpoint.output_dir={tmp_path}")
    assert main([*words, "ray.gpus_per_node=4"]) == 0
    assert "# this machine has no GPU: what follows is what GPUs would get" in capsys.readouterr().out
    assert main([*words, "ray.gpus_per_node=4", "model.device=cpu"]) == 0
    assert "\n# 1 node, 4 ranks, 4 servers of transformers, 0 episode workers" in capsys.readouterr().out


NVRM = "NVRM version: NVIDIA UNIX"
VERSIONS = {
    f"{NVRM} x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n": "550.54.15",
    f"{NVRM} Open Kernel Module for x86_64  580.95.05  Release Build  (x@y)  Tue Sep 23\n": "580.95.05",
    "something else\n": "570.1",
}


@pytest.mark.parametrize("text", VERSIONS)
def test_the_facts_are_those_of_the_driver_and_of_nvidia_smi(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(text)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho '570.1, 81559, 9.0, NVIDIA H100 80GB HBM3'\necho '570.1, 15360, 7.5, Tesla T4, old'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = read_machine(str(tmp_path / "not" / "there"), proc=tmp_path / "version")
    assert found.driver == VERSIONS[text]
    assert found.gpus == (Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 9.0), Gpu("Tesla T4, old", 15360 * 2**20, 7.5))
    assert found.disk > 0
    assert found.shared_memory > 0
    assert found.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A], [N/A], 9.0, a card'", ""])
def test_what_nvidia_smi_does_not_tell_is_not_known(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = read_machine(str(tmp_path), proc=tmp_path / "version")
    assert (found.driver, found.gpus) == ("", ())


def test_the_cuda_of_torch_is_read_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert cuda_of_torch() == (torch.version.cuda or "")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError")
    version = "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(version)
    found = importlib.util.spec_from_file_location("torch", tmp_path / "torch" / "__init__.py")
    monkeypatch.setattr(machine_facts, "find_spec", lambda name: found)
    assert cuda_of_torch() == "13.0"


def test_this_machine_is_read_and_judged_within_seconds(tmp_path: Path, tiny_folder: str) -> None:
    began = time.process_time()
    config, shape = configured(), model_shape(tiny_folder)
    assert shape is not None
    assert lacks(config, [read_machine(str(tmp_path), starts_ray=True)], shape, 10) == {}
    assert time.process_time() - began < 5


def test_a_model_whose_config_is_not_there_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "resnet"}')
    assert model_shape(str(tmp_path)) is None
    assert model_shape(str(tmp_path / "gone")) is None


def test_the_page_has_every_row_of_the_table() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for row in TABLE.values():
        assert f"| {row['read']} | {row['limit']} |" in page
