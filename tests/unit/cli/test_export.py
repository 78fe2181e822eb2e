"""`turnsmith export`: from shards as verl's FSDP2 ranks write them to a folder that transformers and PEFT load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from tests.unit.cli.hub_server import hub_server
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith.cli.main import main
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides, to_dict
from turnsmith.inference.models.shape import tensors_in
from turnsmith.records.checkpoints import PendingCheckpoint, mark_best
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy, complete
from turnsmith.trainer.checkpoints.export import model_card

RANKS = 2


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def tiny(tiny_folder: str) -> Any:
    """The tiny model with weights that bfloat16 cannot represent, as after training."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 1e-3)
    return model


def write_shards(weights: dict[str, torch.Tensor], actor: Path) -> None:
    """What each of two FSDP2 ranks saves: its rows of every weight, as a DTensor."""
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
        write_shards(model.state_dict(), actor)
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
    assert {file.suffix for file in folder.iterdir()} == {".json", ".jinja", ".safetensors", ".md"}
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
        assert {file.suffix for file in adapter.iterdir()} == {".json", ".jinja", ".safetensors", ".md"}
        bare = trained.unload()
        assert not torch.allclose(bare(ids).logits, expected, atol=1e-2)
        assert torch.equal(PeftModel.from_pretrained(bare, str(adapter))(ids).logits, expected)
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == tiny_folder


def test_an_adapter_that_is_all_that_was_saved_is_exported_with_its_base_model(
    tmp_path: Path, tiny_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = apply_overrides(
        ConfigStore(),
        ["model.model_name=tiny", "model.lora_rank=4", "model.lora_merge=false", "inference.backend=vllm"],
    )
    base = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    trained = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules="all-linear"))
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    run = RunFolder.create(tmp_path, "run")
    run.write_config(to_dict(config))
    pending = PendingCheckpoint(run.checkpoints_dir, 3)
    actor = pending.path / "actor"
    actor.mkdir()
    write_shards({name: weight for name, weight in trained.state_dict().items() if "lora_" in name}, actor)
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 16, "task_type": "CAUSAL_LM"}))
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(actor / "huggingface")
    base.config.save_pretrained(actor / "huggingface")
    pending.add_checksums(
        complete(pending.path, CheckpointPolicy.of(config), {}, lambda finish: list(map(finish, range(RANKS))))
    )
    pending.seal()
    saved = pending.commit()

    adapter = json.loads((saved / "actor" / "adapter" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["r"], adapter["lora_alpha"]) == (tiny_folder, 4, 16)
    weights = {file: tensors_in(file) for file in saved.rglob("*.safetensors")}
    assert all("lora_" in name for names in weights.values() for name in names)
    assert main(["export", str(run.path), "--adapter"]) == 0
    assert main(["export", str(run.path)]) == 0
    merged, ids = AutoModelForCausalLM.from_pretrained(run.path / "exports" / "step-3"), torch.arange(5, 25)[None]
    assert merged.dtype == torch.float32
    with torch.no_grad():
        expected = trained(ids).logits
        assert torch.allclose(merged(ids).logits, expected, atol=1e-5)
        with trained.disable_adapter():
            assert not torch.allclose(trained(ids).logits, expected, atol=1e-2)
    capsys.readouterr()
    assert main(["eval", "turnsmith.env.examples:GuessNumber", "--model", str(run.path)]) == 2
    assert "(model.lora_merge=false). Write one with" in capsys.readouterr().err


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


def test_the_card_says_how_it_was_trained_and_what_it_scored(tiny: Any, tmp_path: Path, tiny_folder: str) -> None:
    run = run_with(tiny, tmp_path, tiny_folder)
    (run.path / "resume.json").write_text(json.dumps({"environment": "my_games:Chess"}))
    scored = {"success/mean": 0.5, "success/low": 0.25, "success/high": 0.75, "reward/mean": 0.5, "episodes/total": 64}
    for step in (0, 3, 6):
        run.append_evaluation({"step": step, **scored, "success/mean": step / 10})
    assert main(["export", str(run.path)]) == 0
    card = ModelCard.load(run.path / "exports" / "step-3" / "README.md")
    assert card.data.tags == ["reinforcement-learning", "turnsmith", "grpo"]
    assert card.data.base_model is None, "tiny is not on the hub"
    [success, reward] = card.data.eval_results
    assert (success.dataset_name, success.metric_type, success.metric_value) == ("Chess", "success", 0.3)
    assert reward.metric_value == 0.5
    assert "in the environment `Chess`: grpo, 3 steps of 32\nepisodes in groups of 8, learning rate " in card.text
    assert "| 3 | 30% (25% to 75%) | 0.5 | 64 |" in card.text
    assert "| 6 |" not in card.text, "that is after the checkpoint"


def test_the_card_names_a_base_model_of_the_hub(tmp_path: Path) -> None:
    config = ConfigStore()
    for name, wanted in {"Qwen/Qwen3-0.6B": "Qwen/Qwen3-0.6B", "./mine": None, "/models/mine": None}.items():
        config.model.model_name = name
        run = RunFolder.create(tmp_path, wanted.replace("/", "-") if wanted else name.replace("/", "-"))
        card = ModelCard(model_card(run, config, 1, adapter=True))
        assert (card.data.base_model, card.data.library_name) == (wanted, "peft")
        assert "/models" not in card.text, "no path of this machine is published"


def test_an_export_is_pushed_to_the_hub_with_its_card(
    tiny: Any, tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tiny, tmp_path, tiny_folder)
    with hub_server() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        assert main(["export", str(run.path), "--push", "me/chess"]) == 0
        assert main(["export", str(run.path), "--out", str(tmp_path / "again"), "--push", "me/chess", "--public"]) == 0
    folder = run.path / "exports" / "step-3"
    assert hub.files == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert [(made["name"], made["visibility"]) for made in hub.made] == [("chess", "private"), ("chess", "public")]
    assert hub.tokens == {"Bearer hf_mine"}
    assert f"It is at {hub.address}/me/chess\n" in capsys.readouterr().out


def test_an_export_that_the_hub_refuses_is_kept_and_told(
    tiny: Any, tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tiny, tmp_path, tiny_folder)
    with hub_server(refuses=True) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        assert main(["export", str(run.path), "--push", "me/chess"]) == 2
    told = capsys.readouterr().err
    folder = run.path / "exports" / "step-3"
    assert f"The model is in {folder}, but was not pushed to me/chess: " in told
    assert f"then `hf upload me/chess {folder}`." in told
    assert "Traceback" not in told
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert main(["export", str(run.path), "--out", str(tmp_path / "other"), "--push", "me/chess"]) == 2
    assert "but was not pushed to me/chess: " in capsys.readouterr().err


def test_a_name_that_the_hub_cannot_have_is_refused_before_the_export(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    (run.path / "resume.json").write_text("{}")
    assert main(["export", str(run.path), "--push", "my chess"]) == 2
    assert not (run.path / "exports").exists()
