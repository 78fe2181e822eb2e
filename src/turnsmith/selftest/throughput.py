"""Tokens a second of the engine alone, and through episodes."""

from __future__ import annotations

import time

from turnsmith.config import ConfigStore
from turnsmith.inference.auto import auto_backend, auto_device
from turnsmith.inference.engine import Sampling
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.limits import Limits
from turnsmith.selftest.letters import CountLetters
from turnsmith.selftest.result import CheckFailed

_EPISODES = 32
_TOKENS = 16
_SLOWEST = 20.0
_SHARE = 0.4
"""Least share of the engine's own speed that must be left in episodes; with the tiny model, rendering counts."""


def check_throughput(config: ConfigStore) -> str:
    """The engine is fast enough to train with, and episodes do not slow it down much."""
    model = config.model.local_path or config.model.model_name
    backend = config.inference.backend if config.inference.backend != "auto" else auto_backend(auto_device())
    with create_inference_engine(model, backend) as engine:
        engine.generate(["Say words."], max_tokens=2)  # the first request compiles and allocates
        began = time.perf_counter()
        output = engine.generate([f"Say words with many {n}." for n in range(_EPISODES)], max_tokens=_TOKENS)
        alone = output.tokens.shape[0] * output.tokens.shape[1] / (time.perf_counter() - began)
        began = time.perf_counter()
        plan = EvaluationPlan(episodes=_EPISODES, limits=Limits(turns=2), sampling=Sampling(_TOKENS))
        result = evaluate(CountLetters, engine, plan=plan)
        seconds = time.perf_counter() - began
    tokens = sum(sum(one.tokens.mask) for one in result.trajectories)
    return judge_throughput(alone, tokens / seconds)


def judge_throughput(alone: float, in_episodes: float) -> str:
    """Raise if the engine is too slow, alone or in episodes; both in tokens a second.

    Example:
        >>> judge_throughput(1000.0, 900.0)
        '1,000 tokens/s from the engine alone, 900 in episodes'
    """
    if alone < _SLOWEST:
        raise CheckFailed(
            f"The engine makes {alone:.1f} tokens/s with {_EPISODES} requests at a time, less than {_SLOWEST:g}: is "
            "another program using this machine's cores or GPU?"
        )
    if in_episodes < _SHARE * alone:
        raise CheckFailed(
            f"The engine makes {alone:,.0f} tokens/s alone but {in_episodes:,.0f} in episodes, less than {_SHARE:.0%}: "
            "the processes that run episodes get too little of the CPU."
        )
    return f"{alone:,.0f} tokens/s from the engine alone, {in_episodes:,.0f} in episodes"
