"""`turnsmith export`: from shards as verl's FSDP2 ranks write them to a folder that transformers and PEFT load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith.cli.main import main
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.records.checkpoints import PendingCheckpoint, mark_best
from turnsmith.records.run_folder import RunFolder

RANKS = 2


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


@pytest.fixture
def tiny(tiny_folder: str) -> Any:
    """The tiny model with weights that bfloat16 cannot represent, as after training."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 1e-3)
    return model


def write_shards(model: Any, actor: Path) -> None:
    """What each of two FSDP2 ranks saves: its rows of every weight, as a DTensor."""
    weights = model.state_dict()
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        mesh = DeviceMesh("cpu", list(range(RANKS)), mesh_dim_names=("fsdp",), _init_backend=False)
        for rank in range(RANKS):
            shard: dict[str, Any] = {}
            for name, weight in weights.items():
                rows = torch.chunk(weight, RANKS)
                own = (rows[rank] if rank < len(rows) else rows[0][:0]).clone()
                shard[name] = DTensor.from_local(own, mesh, [Shard(0)], shape=weight.shape, stride=weight.stride())
            torch.save(shard, actor / f"model_world_size_{RANKS}_rank_{rank}.pt")
    finally:
        distributed.destroy_process_group()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": RANKS}))


def run_with(model: Any, tmp_path: Path, tiny_folder: str, steps: tuple[int, ...] = (3,), **lora: Any) -> RunFolder:
    """A run that saved the model at each of these steps."""
    run = RunFolder.create(tmp_path, "run")
    config = ConfigStore()
    config.model.model_name = "tiny"
    run.write_config(to_dict(config))
    for step in steps:
        pending = PendingCheckpoint(run.checkpoints_dir, step)
        actor = pending.path / "actor"
        actor.mkdir()
        write_shards(model, actor)
        AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(actor / "huggingface")
        base = model.get_base_model() if lora else model
        base.config.attn_implementation = "sdpa"  # as verl's override leaves it
        base.config.save_pretrained(actor / "huggingface")
        if lora:
            (actor / "lora_train_meta.json").write_text(json.dumps({**lora, "task_type": "CAUSAL_LM"}))
        pending.seal()
        pending.commit()
    return run


def same_weights(model: Any, other: Any) -> bool:
    """Whether two models have bitwise the same weights."""
    weights = other.state_dict()
    return all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_the_export_is_bitwise_the_trained_model(
    tiny: Any, tmp_path: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tiny, tmp_path, tiny_folder)
    assert main(["export", str(run.path)]) == 0
    folder = run.path / "exports" / "step-3"
    assert capsys.readouterr().out == f"The model is in {folder}\n"
    exported = AutoModelForCausalLM.from_pretrained(folder)
    assert exported.dtype == torch.float32
    assert same_weights(exported, tiny)
    assert exported.lm_head.weight is exported.model.embed_tokens.weight
    assert "attn_implementation" not in json.loads((folder / "config.json").read_text())
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert {file.suffix for file in folder.iterdir()} == {".json", ".jinja", ".safetensors"}
    assert all(file.stat().st_mode & 0o044 for file in folder.iterdir())


def test_a_dtype_can_be_asked_for(tiny: Any, tmp_path: Path, tiny_folder: str) -> None:
    run = run_with(tiny, tmp_path, tiny_folder)
    out = tmp_path / "half"
    assert main(["export", str(run.path), "--out", str(out), "--dtype", "bfloat16"]) == 0
    exported = AutoModelForCausalLM.from_pretrained(out)
    assert exported.dtype == torch.bfloat16
    assert same_weights(exported, tiny.bfloat16())


def test_a_lora_adapter_is_merged_or_exported_alone(tiny: Any, tmp_path: Path, tiny_folder: str) -> None:
    trained = get_peft_model(tiny, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules="all-linear"))
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    run = run_with(trained, tmp_path, tiny_folder, r=4, lora_alpha=16)
    assert main(["export", str(run.path)]) == 0
    assert main(["export", str(run.path), "--adapter"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(run.path / "exports" / "step-3")
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        expected = trained(ids).logits
        assert torch.allclose(merged(ids).logits, expected, atol=1e-5)
        adapter = run.path / "exports" / "step-3-adapter"
        assert {file.suffix for file in adapter.iterdir()} == {".json", ".jinja", ".safetensors"}
        bare = trained.unload()
        assert not torch.allclose(bare(ids).logits, expected, atol=1e-2)
        assert torch.equal(PeftModel.from_pretrained(bare, str(adapter))(ids).logits, expected)
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == tiny_folder


def test_the_step_is_best_last_or_a_number(
    tiny: Any, tmp_path: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tiny, tmp_path, tiny_folder, steps=(1, 2, 3))
    assert main(["export", str(run.path), "--step", "best"]) == 2
    assert "is marked as the best" in capsys.readouterr().err
    mark_best(run.checkpoints_dir, 2, 0.7)
    (run.checkpoints_dir / "global_step_3" / "actor" / "fsdp_config.json").write_text("{}")
    for step, folder in (("best", "step-2"), ("1", "step-1")):
        assert main(["export", str(run.path), "--step", step]) == 0
        assert capsys.readouterr().out.endswith(f"{folder}\n")
    assert main(["export", str(run.path), "--out", str(tmp_path / "last")]) == 0
    assert "Using step 2 instead" in capsys.readouterr().err
    assert main(["export", str(run.path), "--step", "3"]) == 2
    assert "damaged: actor/fsdp_config.json has 2 bytes" in capsys.readouterr().err


def test_what_cannot_be_exported_is_an_error(
    tiny: Any, tmp_path: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tiny, tmp_path, tiny_folder)
    assert main(["export", str(run.path), "--adapter"]) == 2
    assert "trained all weights" in capsys.readouterr().err
    assert main(["export", str(run.path), "--out", tiny_folder]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", str(run.path), "--step", "newest"])
    assert "use a number, `best` or `last`" in capsys.readouterr().err
    (run.checkpoints_dir / "global_step_3" / "manifest.json").unlink()
    assert main(["export", str(run.path), "--step", "3"]) == 2
    assert "never finished" in capsys.readouterr().err
