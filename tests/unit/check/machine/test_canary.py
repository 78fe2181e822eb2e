"""Log-probs of real episodes tell an engine with a changed weight from one without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnsmith.check.finding import Finding
from turnsmith.check.machine.canary import judge_weights, model_log_probs, sampled_log_probs
from turnsmith.check.machine.letters import CountLetters
from turnsmith.inference.engine import Sampling
from turnsmith.inference.models import resolve
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.spec import Limits
from turnsmith.trajectory import Trajectory


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with one weight scaled, as the check does it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("changed")
    model = AutoModelForCausalLM.from_pretrained(resolve("tiny"))
    model.model.norm.weight.data.mul_(1.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve("tiny")).save_pretrained(folder)
    return folder


def episodes_of(model: str, dtype: str) -> Sequence[Trajectory]:
    with create_inference_engine(model, "transformers", {"dtype": dtype}) as engine:
        plan = EvaluationPlan(episodes=8, limits=Limits(turns=2), sampling=Sampling(8))
        return evaluate(CountLetters, engine, plan=plan).trajectories


def judged(episodes: Sequence[Trajectory], changed: Path) -> Finding:
    return judge_weights(
        "model.norm.weight",
        engine=sampled_log_probs(episodes),
        before=model_log_probs(Path(resolve("tiny")), episodes, trust_remote_code=False),
        changed=model_log_probs(changed, episodes, trust_remote_code=False),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_with_the_changed_weight_passes(dtype: str, changed: Path) -> None:
    assert "log-probs moved by" in judged(episodes_of(str(changed), dtype), changed).saw


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_kept_the_old_weight_fails(dtype: str, changed: Path) -> None:
    found = judged(episodes_of("tiny", dtype), changed)
    assert found.status == "failed"
    assert "the engine did not get the new weight" in found.saw


@pytest.mark.nightly  # seconds of real processes
def test_a_shard_is_read_in_a_process_that_has_imported_nothing_else(tmp_path: Path) -> None:
    write = """
import sys, torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.save({"w": DTensor.from_local(torch.ones(2), mesh, [Shard(0)])}, sys.argv[1])
"""
    read = """
import sys, pathlib
from turnsmith.trainer.checkpoints.hugging_face import read_shard
assert read_shard(pathlib.Path(sys.argv[1]))["w"].to_local().tolist() == [1, 1]
"""
    for program in (write, read):
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "shard.pt")], check=True)
