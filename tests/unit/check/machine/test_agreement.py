"""Engine and trainer may differ by what bfloat16 rounds, and no more: faults that 0.1 let pass are noticed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnsmith.check.machine.canary import judge_agreement, model_log_probs, sampled_log_probs, spread
from turnsmith.check.machine.letters import CountLetters
from turnsmith.inference.engine import Sampling
from turnsmith.inference.models import resolve
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.spec import Limits
from turnsmith.trajectory import Trajectory

DTYPE = "bfloat16"
RATE = 1e-3
"""The learning rate of the check's short runs."""
FORMERLY = 0.1
"""The largest difference in a token's probability that was let pass."""


def updated(model: Any, rate: float, part: str = "") -> None:
    """The first update of AdamW: every weight moves by the learning rate."""
    import torch

    chance = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        step = rate * torch.sign(torch.randn(weight.shape, generator=chance))
        if part in name:
            weight.data.add_(step)


def with_adapter(model: Any) -> None:
    """A LoRA adapter of rank 8 after its first update, merged."""
    import torch

    chance = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "proj" in name:
            down = (torch.rand(8, weight.shape[1], generator=chance) * 2 - 1) / math.sqrt(weight.shape[1])
            up = RATE * torch.sign(torch.randn(weight.shape[0], 8, generator=chance))
            weight.data.add_(2 * up @ down)


def without_mlp(model: Any) -> None:
    model.model.layers[len(model.model.layers) // 2].mlp.down_proj.weight.data.zero_()


def with_epsilon(epsilon: float) -> Callable[[Any], None]:
    return lambda model: setattr(model.config, "rms_norm_eps", epsilon)


def with_rope(**changed: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.config, "rope_parameters", {**model.config.rope_parameters, **changed})


@dataclass(frozen=True)
class Fault:
    """What one side computes otherwise than the other."""

    plant: Callable[[Any], None] = lambda model: None
    temperature: float = 1.0
    """Of the engine."""
    noticed: tuple[str, ...] = ("tiny", "smollm2")
    """The models with which it is."""
    formerly: tuple[str, ...] = ()
    """Those with which a probability differs by more than 0.1."""


FAULTS = {
    "none": Fault(noticed=()),
    "temperature 0.9 instead of 1": Fault(temperature=0.9, formerly=("smollm2",)),
    "all weights older by one update": Fault(lambda model: updated(model, RATE), formerly=("smollm2",)),
    "one layer older by one update": Fault(lambda model: updated(model, RATE, "layers.1."), noticed=("tiny",)),
    "a dropped adapter": Fault(with_adapter),
    "a layer's MLP missing": Fault(without_mlp),
    "no RoPE scaling by 2": Fault(with_rope(rope_type="linear", factor=2.0), noticed=("smollm2",)),
    "epsilon of the norms 1e-3": Fault(with_epsilon(1e-3), formerly=("smollm2",)),
    "epsilon of the norms 1e-4": Fault(with_epsilon(1e-4), noticed=("tiny",)),
    "all weights older by an update of 1e-6": Fault(lambda model: updated(model, 1e-6), noticed=()),
}


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2", marks=pytest.mark.nightly)])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def episodes_of(model: str, temperature: float = 1.0, seed: int = 1_000_000) -> Sequence[Trajectory]:
    """Episodes as the check plays them, with an engine that computes in bfloat16."""
    with create_inference_engine(model, "transformers", {"dtype": DTYPE}) as engine:
        plan = EvaluationPlan(episodes=8, limits=Limits(turns=2), sampling=Sampling(8, temperature), seed=seed)
        return evaluate(CountLetters, engine, plan=plan).trajectories


@pytest.fixture(scope="module")
def played(name: str) -> Sequence[Trajectory]:
    return episodes_of(resolve(name))


def by(model: str | Path, episodes: Sequence[Trajectory], dtype: str = DTYPE) -> list[float]:
    return model_log_probs(model, episodes, trust_remote_code=False, dtype=dtype)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed_and_rounding_is_not(
    fault: str, name: str, played: Sequence[Trajectory], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    planted, right = FAULTS[fault], resolve(name)
    model: Any = AutoModelForCausalLM.from_pretrained(right, dtype="float32")
    planted.plant(model)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(right).save_pretrained(tmp_path)
    episodes = played if planted.temperature == 1 else episodes_of(right, planted.temperature)
    engine, trainer = sampled_log_probs(episodes), by(tmp_path, episodes)
    rounding = spread(by(right, episodes, "float32"), by(right, episodes))
    finding = judge_agreement(spread(engine, trainer), rounding, DTYPE)
    differ = float(np.abs(np.exp(engine) - np.exp(trainer)).max())
    told = f"{name}: {fault}: {finding.saw}; formerly {differ:.2g}"
    assert (finding.status == "failed") == (name in planted.noticed), told
    assert (differ > FORMERLY) == (name in planted.formerly), told


@pytest.mark.parametrize("seed", range(4))
def test_honest_bfloat16_is_within_its_rounding_for_any_seed(seed: int, name: str) -> None:
    right = resolve(name)
    episodes = episodes_of(right, seed=2_000_000 + 1000 * seed)
    rounding = spread(by(right, episodes, "float32"), by(right, episodes))
    assert judge_agreement(spread(sampled_log_probs(episodes), by(right, episodes)), rounding, DTYPE).status == "passed"
