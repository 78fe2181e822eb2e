"""Many prompts through one engine: always full, never in lockstep, in order; a progress bar in a terminal only."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from turnsmith import Generation, Sampling
from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.inference.sync.batch import BatchInferenceManager
from turnsmith.inference.sync.create import create_inference_engine


class Clocked:
    """Takes as many ticks as the prompt has tokens, says the first of them, and notes how many it held at each tick."""

    def __init__(self) -> None:
        self.inside = 0
        self.held: list[int] = []
        self.ended: list[int] = []

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
        self.inside += 1
        for _ in prompt_ids:
            await asyncio.sleep(0)
            self.held.append(self.inside)
        self.inside -= 1
        self.ended.append(prompt_ids[0])
        return Generation([prompt_ids[0]], [0.0])


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Callable[..., PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    return byte_tokenizer()


def test_the_engine_is_kept_full_and_responses_are_in_order(tokenizer: Any) -> None:
    engine = Clocked()
    # One long prompt; in lockstep the engine would hold one sequence for most of its time.
    prompts = [[0] * 200, *([place] * 10 for place in range(1, 60))]
    with BaseInferenceEngine(engine, tokenizer) as sync_engine:
        output = BatchInferenceManager(sync_engine, batch_size=4).generate_batch(prompts, max_tokens=1)
    assert [ids[0] for ids in output.token_ids] == list(range(60))
    assert engine.ended.index(0) > 40, "others went on while the long one was decoded"
    assert max(engine.held) == 4
    assert sum(count == 4 for count in engine.held) > 0.95 * len(engine.held)


def test_an_error_ends_the_batch_at_once(tokenizer: Any) -> None:
    class Failing(Clocked):
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            if prompt_ids[0] == 3:
                raise EngineFailure("out of memory")
            return await super().generate(prompt_ids, sampling, session=session)

    engine = Failing()
    with BaseInferenceEngine(engine, tokenizer) as sync_engine, pytest.raises(EngineFailure, match="out of memory"):
        BatchInferenceManager(sync_engine, batch_size=2).generate_batch([[place] * 5 for place in range(50)])
    assert len(engine.ended) < 6


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_shown_in_a_terminal_only(tokenizer: Any, terminal: bool) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=80)
    with BaseInferenceEngine(Clocked(), tokenizer) as sync_engine:
        BatchInferenceManager(sync_engine, batch_size=2, console=console).generate_batch(["a"] * 7)
    assert ("7/7" in screen.getvalue()) == terminal
    assert terminal or not screen.getvalue()


def test_a_real_model_responds_as_without_the_manager() -> None:
    prompts = [f"Count to {number}." for number in range(10)]
    with create_inference_engine("tiny", "transformers") as sync_engine:
        batched = BatchInferenceManager(sync_engine, batch_size=3).generate_batch(prompts, max_tokens=6, temperature=0)
        assert batched.token_ids == sync_engine.generate(prompts, max_tokens=6, temperature=0).token_ids


def test_a_batch_size_of_0_is_rejected(tokenizer: Any) -> None:
    with BaseInferenceEngine(Clocked(), tokenizer) as sync_engine, pytest.raises(ConfigError, match="batch_size is 0"):
        BatchInferenceManager(sync_engine, batch_size=0)
