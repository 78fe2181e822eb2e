"""Tokens a second of the engine alone, and through episodes."""

from __future__ import annotations

import time

from turnsmith.config import ConfigStore
from turnsmith.inference.auto import auto_device
from turnsmith.inference.engine import Sampling
from turnsmith.inference.sync.create import create_inference_engine, engine_settings
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.limits import Limits
from turnsmith.selftest.letters import CountLetters
from turnsmith.selftest.result import CheckFailed, CheckSkipped
from turnsmith.trainer.config.auto import resolve_backend, resolve_device, resolve_dtype

_EPISODES = 32
_TOKENS = 16
_SLOWEST = 20.0
_SHARE = 0.5
_TURN_SECONDS = 0.05
"""What a turn may cost besides its tokens, if that is more than half of the time: one process runs some 100 turns a
second, and a fast engine with a tiny model needs less time for the tokens than that."""


def check_throughput(config: ConfigStore) -> str:
    """The engine is fast enough to train with, and episodes do not slow it down much."""
    backend = resolve_backend(config)
    if backend == "sglang":
        raise CheckSkipped("SGLang runs as a server, which only the runs below start")
    if resolve_device(config) == "cuda" and auto_device() == "cpu":
        raise CheckSkipped("this machine of the cluster has no GPU")
    settings = engine_settings(config, backend)
    settings |= {"dtype": resolve_dtype(config)} if "dtype" in settings else {}
    with create_inference_engine(config.model.local_path or config.model.model_name, backend, settings) as engine:
        engine.generate(["Say words."], max_tokens=2)  # the first request compiles and allocates
        began = time.perf_counter()
        output = engine.generate([f"Say words with many {n}." for n in range(_EPISODES)], max_tokens=_TOKENS)
        alone = sum(map(len, output.token_ids)) / (time.perf_counter() - began)
        began = time.perf_counter()
        plan = EvaluationPlan(episodes=_EPISODES, limits=Limits(turns=2), sampling=Sampling(_TOKENS))
        result = evaluate(CountLetters, engine, plan=plan)
        seconds = time.perf_counter() - began
    tokens = sum(one.sampled_tokens for one in result.trajectories)
    turns = sum(one.num_turns for one in result.trajectories)
    return judge_throughput(alone, tokens / seconds, tokens / turns)


def judge_throughput(alone: float, in_episodes: float, turn_tokens: float) -> str:
    """Raise if the engine is too slow, alone or in episodes.

    Args:
        alone: Tokens a second of the engine.
        in_episodes: Tokens a second of episodes.
        turn_tokens: Tokens of a turn.

    Example:
        >>> judge_throughput(1000.0, 900.0, 16.0)
        '1,000 tokens/s from the engine alone, 900 in episodes; a turn costs 2 ms more'
    """
    if alone < _SLOWEST:
        raise CheckFailed(
            f"The engine makes {alone:.1f} tokens/s with {_EPISODES} requests at a time, less than {_SLOWEST:g}: is "
            "another program using this machine's cores or GPU?"
        )
    more = max(0.0, turn_tokens / in_episodes - turn_tokens / alone)
    if in_episodes < _SHARE * alone and more > _TURN_SECONDS:
        raise CheckFailed(
            f"The engine makes {alone:,.0f} tokens/s alone but {in_episodes:,.0f} in episodes: a turn costs "
            f"{1000 * more:.0f} ms besides its tokens (at most {1000 * _TURN_SECONDS:.0f}), so the process that runs "
            "episodes gets too little of the CPU."
        )
    return (
        f"{alone:,.0f} tokens/s from the engine alone, {in_episodes:,.0f} in episodes; a turn costs "
        f"{1000 * more:.0f} ms more"
    )
