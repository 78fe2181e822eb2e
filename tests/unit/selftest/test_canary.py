"""Log-probs of real episodes tell an engine with a changed weight from one without it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from turnsmith.inference.engine import Sampling
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.models import resolve
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.limits import Limits
from turnsmith.selftest.canary import judge_weights, model_log_probs, sampled_log_probs
from turnsmith.selftest.letters import CountLetters
from turnsmith.selftest.result import CheckFailed
from turnsmith.trajectory import Trajectory


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with one weight scaled, as the selftest does it."""
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


def judged(episodes: Sequence[Trajectory], changed: Path) -> str:
    return judge_weights(
        "model.norm.weight",
        engine=sampled_log_probs(episodes),
        before=model_log_probs(Path(resolve("tiny")), episodes, trust_remote_code=False),
        changed=model_log_probs(changed, episodes, trust_remote_code=False),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_with_the_changed_weight_passes(dtype: str, changed: Path) -> None:
    assert "log-probs moved by" in judged(episodes_of(str(changed), dtype), changed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_kept_the_old_weight_fails(dtype: str, changed: Path) -> None:
    with pytest.raises(CheckFailed, match="the engine did not get the new weight"):
        judged(episodes_of("tiny", dtype), changed)
