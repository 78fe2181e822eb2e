"""The synchronous API of the specification, over an async engine with a real model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from turnsmith import Generation, Sampling
from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.inference.sync.engines import TransformersInferenceEngine, load_tokenizer

PROMPTS = ["Hello, how are you?", "a", "Once upon a time there was a fox."]


def test_a_model_that_neither_machine_nor_hub_has_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    began = time.monotonic()
    for make in (lambda: TransformersInferenceEngine("no/such-model"), lambda: load_tokenizer("no/such-model", False)):
        with pytest.raises(
            ConfigError, match=r"'no/such-model' is not on this machine, and the Hugging Face hub cannot"
        ):
            make()
    assert time.monotonic() - began < 10


@pytest.fixture(scope="module")
def engine() -> Iterator[BaseInferenceEngine]:
    with create_inference_engine("tiny", backend="transformers", config={"dtype": "float32"}) as made:
        yield made


def reference(engine: Any, prompt: list[int], response: list[int]) -> float:
    with torch.no_grad():
        logits = engine.engine.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return float(torch.log_softmax(logits.double(), -1).gather(1, torch.tensor(response)[:, None]).sum())


def test_texts_tokens_and_log_probs_belong_together(engine: BaseInferenceEngine) -> None:
    output = engine.generate(PROMPTS, max_tokens=12, temperature=1.0, top_p=1.0, seed=3)
    assert output.tokens.dtype == np.int64
    assert output.tokens.shape == (3, max(len(ids) for ids in output.token_ids))
    for row, ids, log_probs, text in zip(
        output.tokens, output.token_ids, output.log_probs, output.sequences, strict=True
    ):
        assert row[: len(ids)].tolist() == ids
        assert set(row[len(ids) :].tolist()) <= {engine.tokenizer.pad_token_id}
        assert len(log_probs) == len(ids)
        assert text == engine.tokenizer.decode(ids, skip_special_tokens=True)


def test_prompts_get_no_chat_template(engine: BaseInferenceEngine) -> None:
    prompts: list[list[int]] = []

    class Listening:
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            prompts.append(list(prompt_ids))
            return Generation([1], [0.0])

    with BaseInferenceEngine(Listening(), engine.tokenizer) as listening:
        listening.generate(["Hello"])
    assert prompts == [engine.tokenizer.encode("Hello")]
    assert engine.tokenizer.decode(prompts[0]) == "Hello"


def test_greedy_is_what_transformers_gives(engine: Any) -> None:
    output = engine.generate(PROMPTS, max_tokens=10, temperature=0)
    for prompt, ids in zip(PROMPTS, output.token_ids, strict=True):
        given = torch.tensor([engine.tokenizer.encode(prompt)])
        plain = engine.engine.model.generate(given, max_new_tokens=10, do_sample=False, pad_token_id=0)
        assert plain[0, given.shape[1] :].tolist()[: len(ids)] == ids


def test_a_seed_repeats_the_call_and_equal_prompts_still_differ(engine: BaseInferenceEngine) -> None:
    first, again = (engine.generate(["same"] * 3, max_tokens=12, temperature=1.0, seed=7) for _ in range(2))
    assert first.token_ids == again.token_ids
    assert len({tuple(ids) for ids in first.token_ids}) == 3
    assert engine.generate(["same"] * 3, max_tokens=12, temperature=1.0, seed=8).token_ids != first.token_ids


def test_log_probs_of_given_texts_are_those_of_the_model(engine: Any) -> None:
    responses = ["fine", "!", " It was a fox"]
    scores = engine.compute_log_probs(PROMPTS, responses)
    assert scores.dtype == torch.float32
    assert scores.shape == (3,)
    for score, prompt, response in zip(scores, PROMPTS, responses, strict=True):
        ids = engine.tokenizer.encode(prompt), engine.tokenizer.encode(response, add_special_tokens=False)
        assert float(score) == pytest.approx(reference(engine, *ids), abs=1e-4)


def test_sampled_tokens_score_as_they_were_sampled(engine: BaseInferenceEngine) -> None:
    # Ids, not text: decoding and encoding would change some of them.
    output = engine.generate(PROMPTS, max_tokens=16, temperature=1.0, top_p=1.0, seed=1)
    scores = engine.compute_log_probs(PROMPTS, output.token_ids)
    assert scores.tolist() == pytest.approx([sum(row) for row in output.log_probs], abs=1e-3)


def test_an_empty_response_has_log_prob_0_and_an_empty_prompt_is_an_error(engine: BaseInferenceEngine) -> None:
    assert engine.compute_log_probs(["a"], [""]).tolist() == [0.0]
    assert engine.compute_log_probs([], []).shape == (0,)
    with pytest.raises(EngineFailure, match="empty"):
        engine.compute_log_probs([""], ["a"])
    with pytest.raises(ConfigError, match="2 prompts but 1 responses"):
        engine.compute_log_probs(["a", "b"], ["c"])


def test_no_prompts_give_no_responses(engine: BaseInferenceEngine) -> None:
    output = engine.generate([])
    assert output.sequences == []
    assert output.tokens.shape == (0, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"max_tokens": 0}, "max_tokens"), ({"temperature": -1.0}, "temperature"), ({"top_p": 0.0}, "top_p")],
)
def test_invalid_sampling_is_rejected(engine: BaseInferenceEngine, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.generate(["a"], **wrong)


def test_a_string_instead_of_a_list_is_rejected(engine: BaseInferenceEngine) -> None:
    with pytest.raises(ConfigError, match="pass a list of prompts"):
        engine.generate("Hello")


def test_one_prompt_that_fails_fails_the_call(engine: BaseInferenceEngine) -> None:
    with pytest.raises(EngineFailure, match="vocabulary"):
        engine.generate([[1, 2], [10**6]])
    assert engine.generate(["a"], max_tokens=2).sequences  # and the engine goes on


def test_calls_of_many_threads_are_batched_together(tiny_folder: str, engine: BaseInferenceEngine) -> None:
    together = threading.Barrier(4, timeout=10)

    class Meeting:
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            # Passes only when all four callers are inside at the same time.
            await asyncio.to_thread(together.wait)
            return Generation([1], [0.0])

    with BaseInferenceEngine(Meeting(), engine.tokenizer) as shared, ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda text: shared.generate([text]).token_ids, "abcd"))
    assert answers == [[[1]]] * 4


async def test_a_synchronous_call_works_inside_a_running_event_loop(engine: BaseInferenceEngine) -> None:
    # As in a notebook.
    assert len(engine.generate(["a"], max_tokens=2).token_ids) == 1


def test_close_ends_pending_calls_and_is_safe_to_call_twice(tiny_folder: str, engine: BaseInferenceEngine) -> None:
    entered = threading.Event()

    class Stuck:
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            entered.set()
            await asyncio.Event().wait()
            raise AssertionError

    stuck = BaseInferenceEngine(Stuck(), engine.tokenizer)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(stuck.generate, ["a"])
        assert entered.wait(10)
        stuck.close()
        with pytest.raises(EngineFailure, match="closed"):
            waiting.result(10)
    stuck.close()
    with pytest.raises(EngineFailure, match="closed"):
        stuck.generate(["a"])


def test_close_ends_the_engine(tiny_folder: str) -> None:
    with TransformersInferenceEngine(tiny_folder) as own:
        engine = own.engine
        assert isinstance(engine, TransformersEngine)
    with pytest.raises(EngineFailure, match="closed"):
        asyncio.run(engine.generate([1], Sampling(), session="a"))


def test_an_engine_that_cannot_score_says_so(engine: BaseInferenceEngine) -> None:
    class Mute:
        async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
            return Generation([1], [0.0])

    with (
        BaseInferenceEngine(Mute(), engine.tokenizer) as mute,
        pytest.raises(EngineFailure, match="Mute cannot compute log-probs"),
    ):
        mute.compute_log_probs(["a"], ["b"])


def test_unknown_settings_and_backends_suggest_the_closest() -> None:
    with pytest.raises(ConfigError, match="Did you mean max_model_len"):
        create_inference_engine("tiny", "vllm", {"max_model_length": 512})
    with pytest.raises(ConfigError, match="no backend 'vlm': choose one of transformers, vllm"):
        create_inference_engine("tiny", "vlm")
    with pytest.raises(ConfigError, match="does not exist"):
        create_inference_engine("./nowhere", "transformers")


class EchoEngine:
    """An engine of the user's own: it repeats the last token of the prompt."""

    def __init__(self, model_path: str, times: int = 2) -> None:
        self.model_path, self.times = model_path, times

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Generation:
        return Generation([prompt_ids[-1]] * self.times, [-1.0] * self.times)


def test_an_engine_of_the_users_own_is_named_by_its_module() -> None:
    backend = "tests.unit.inference.test_sync:EchoEngine"
    with create_inference_engine("tiny", backend, {"times": 3}) as engine:
        assert engine.generate(["ab"]).sequences == ["bbb"]
    with pytest.raises(ConfigError, match="pathlib:Path is not an engine: it needs an async method `generate`"):
        create_inference_engine("tiny", "pathlib:Path")
