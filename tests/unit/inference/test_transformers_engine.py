"""The transformers engine: concurrent requests, weight updates between two tokens, failures that stay isolated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.transformers_engine import TransformersEngine

ENDLESS = Sampling(max_tokens=1_000_000)


@pytest.fixture
def engine(tiny_folder: str) -> Iterator[TransformersEngine]:
    made = TransformersEngine(tiny_folder, max_concurrency=4)
    yield made
    made.close()


async def first_token_of(engine: TransformersEngine) -> None:
    """Wait until something is being decoded."""
    while not any(sequence.token_ids for sequence in engine._batch.sequences):
        await asyncio.sleep(0.001)


async def test_concurrent_calls_share_the_batch_and_each_gets_its_own_tokens(engine: TransformersEngine) -> None:
    def request(number: int) -> tuple[list[int], Sampling]:
        return list(range(4, 5 + number)), Sampling(max_tokens=3 + number, seed=number)

    alone = [await engine.generate(*request(number), session="a") for number in range(12)]
    together = await asyncio.gather(*(engine.generate(*request(number), session=str(number)) for number in range(12)))
    for number, (expected, generation) in enumerate(zip(alone, together, strict=True)):
        assert generation.token_ids == expected.token_ids
        assert generation.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
        assert len(generation.token_ids) == 3 + number
        assert generation.stop_reason == "length"


async def test_never_more_sequences_in_the_batch_than_max_concurrency(engine: TransformersEngine) -> None:
    most = 0
    join = engine._batch.join

    def watched_join(sequences: Any) -> Any:
        nonlocal most
        most = max(most, len(engine._batch.sequences) + len(sequences))
        return join(sequences)

    engine._batch.join = watched_join  # type: ignore[method-assign]
    await asyncio.gather(*(engine.generate([5], Sampling(max_tokens=4), session="a") for _ in range(15)))
    assert most == 4


async def test_calls_from_several_event_loops(engine: TransformersEngine) -> None:
    lengths: list[int] = []

    def ask() -> None:
        lengths.append(len(asyncio.run(engine.generate([4, 5], Sampling(max_tokens=6), session="a")).token_ids))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert lengths == [6, 6, 6]


async def test_new_weights_arrive_between_two_tokens_and_change_the_version(engine: TransformersEngine) -> None:
    before = await engine.generate([4, 5, 6], Sampling(max_tokens=6, temperature=0.0), session="a")
    assert before.weights_version == 0
    running = asyncio.create_task(engine.generate([4, 5, 6], Sampling(max_tokens=3000), session="b"))
    await first_token_of(engine)
    changed = [(name, torch.randn_like(tensor)) for name, tensor in engine.model.state_dict().items()]
    await asyncio.to_thread(engine.load_weights, changed, 7)
    assert not running.done(), "the weights were to come while it was running"
    running.cancel()
    after = await engine.generate([4, 5, 6], Sampling(max_tokens=6, temperature=0.0), session="a")
    assert after.weights_version == 7
    assert after.log_probs != before.log_probs


async def test_a_sequence_in_flight_records_where_the_weights_changed(engine: TransformersEngine) -> None:
    running = asyncio.create_task(engine.generate([4], Sampling(max_tokens=300), session="b"))
    await first_token_of(engine)
    await asyncio.to_thread(engine.load_weights, [], 3)
    generation = await running
    [(place, version)] = generation.swaps
    assert (generation.weights_version, version) == (0, 3)
    assert 0 < place < len(generation.token_ids)


async def test_only_the_last_part_of_the_weights_has_the_version(engine: TransformersEngine) -> None:
    name, weight = next(iter(engine.model.state_dict().items()))
    await asyncio.to_thread(engine.load_weights, [(name, weight + 1)], None)
    assert engine.weights_version == 0
    await asyncio.to_thread(engine.load_weights, [], 1)
    assert engine.weights_version == 1


@pytest.mark.parametrize("sent", ["model.embed_tokens.weight", "lm_head.weight"])
def test_a_tied_output_head_follows_whichever_name_is_sent(engine: TransformersEngine, sent: str) -> None:
    head, embedding = engine.model.lm_head.weight, engine.model.model.embed_tokens.weight
    new = torch.randn(embedding.shape, dtype=torch.bfloat16)  # the trainer's dtype need not be the engine's
    engine.load_weights([(sent, new)], 1)
    assert torch.equal(head, new.float())
    assert torch.equal(embedding, new.float())
    assert head.data_ptr() == embedding.data_ptr()


async def test_loaded_weights_are_what_the_model_then_samples_from(engine: TransformersEngine) -> None:
    # All of the head on one token: with these weights, and only with these, it is always sampled.
    final_norm = torch.ones_like(engine.model.model.norm.weight)
    table = torch.zeros_like(engine.model.lm_head.weight)
    table[:, 0], table[42, 0] = 1.0, 10.0
    rest = [
        (name, torch.zeros_like(tensor))
        for name, tensor in engine.model.named_parameters()
        if "layers" in name and "norm" not in name
    ]
    weights = [*rest, ("model.embed_tokens.weight", table), ("model.norm.weight", final_norm)]
    await asyncio.to_thread(engine.load_weights, weights, 1)
    generation = await engine.generate([9], Sampling(max_tokens=5), session="a")
    assert generation.token_ids == [42] * 5
    assert generation.log_probs == pytest.approx([0.0] * 5, abs=1e-5)


def test_a_weight_that_the_model_lacks_is_an_error_with_its_name(engine: TransformersEngine) -> None:
    with pytest.raises(EngineFailure, match=r"no weight called 'model\.layers\.9\.bias'"):
        engine.load_weights([("model.layers.9.bias", torch.zeros(1))], 5)
    assert engine.weights_version == 0


@pytest.mark.parametrize("shape", [(1,), (64,), (3, 3)])
def test_a_weight_of_another_shape_is_an_error_and_never_broadcast(
    engine: TransformersEngine, shape: tuple[int, ...]
) -> None:
    with pytest.raises(EngineFailure, match=r"'lm_head\.weight' has shape .* but the model's has \[100, 64\]"):
        engine.load_weights([("lm_head.weight", torch.zeros(shape))], 5)
    assert not torch.equal(engine.model.lm_head.weight, torch.zeros(100, 64))


async def test_a_model_that_raises_fails_pending_requests_and_the_engine_goes_on(engine: TransformersEngine) -> None:
    waiting = [asyncio.create_task(engine.generate([4, 5], ENDLESS, session=str(number))) for number in range(2)]
    await first_token_of(engine)
    working = engine.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not all(task.done() for task in waiting):  # the second may join the batch later than the first
            raise ZeroDivisionError("a broken layer")
        return working(*args, **kwargs)

    engine.model.forward = forward
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, EngineFailure)
        assert "ZeroDivisionError('a broken layer')" in str(result)
    generation = await engine.generate([4, 5], Sampling(max_tokens=5), session="c")
    assert len(generation.token_ids) == 5


@pytest.mark.parametrize(
    ("prompt_ids", "reason"), [([], "empty"), ([4, 100], "vocabulary of 100"), ([-1], "vocabulary")]
)
async def test_a_prompt_that_cannot_be_continued_fails_alone(
    engine: TransformersEngine, prompt_ids: list[int], reason: str
) -> None:
    other = asyncio.create_task(engine.generate([4, 5], Sampling(max_tokens=200), session="a"))
    await first_token_of(engine)
    with pytest.raises(EngineFailure, match=reason):
        await engine.generate(prompt_ids, Sampling(max_tokens=5), session="b")
    assert len((await other).token_ids) == 200


async def test_a_cancelled_request_frees_its_slot_and_leaves_the_others_alone(engine: TransformersEngine) -> None:
    cancelled = [asyncio.create_task(engine.generate([4], ENDLESS, session=str(number))) for number in range(6)]
    await first_token_of(engine)
    other = asyncio.create_task(engine.generate([5], Sampling(max_tokens=5), session="other"))
    for task in cancelled:
        task.cancel()
    assert len((await asyncio.wait_for(other, 20)).token_ids) == 5
    while engine._batch.sequences:
        await asyncio.sleep(0.001)
    assert not engine._futures


async def test_closing_ends_the_thread_and_fails_pending_requests(tiny_folder: str) -> None:
    engine = TransformersEngine(tiny_folder, max_concurrency=1)
    waiting = [asyncio.create_task(engine.generate([4], ENDLESS, session=str(number))) for number in range(3)]
    await first_token_of(engine)
    await asyncio.to_thread(engine.close)
    assert not engine._thread.is_alive()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, EngineFailure)
        assert "closed" in str(result)


async def test_a_closed_engine_rejects_requests(tiny_folder: str) -> None:
    engine = TransformersEngine(tiny_folder)
    engine.close()
    engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate([4], Sampling(), session="a")
    with pytest.raises(EngineFailure, match="closed"):
        engine.load_weights([], 1)


async def test_a_pause_stops_every_sequence_where_it_is(engine: TransformersEngine) -> None:
    whole = await engine.generate([4, 5], Sampling(max_tokens=300, seed=3), session="a")
    held = asyncio.create_task(engine.generate([4, 5], Sampling(max_tokens=300, seed=3), session="a"))
    await first_token_of(engine)
    await asyncio.to_thread(engine.pause)
    late = asyncio.create_task(engine.generate([4], Sampling(max_tokens=2), session="b"))
    length = len(engine._batch.sequences[0].token_ids)
    weights = [(name, tensor.clone()) for name, tensor in engine.model.named_parameters()]
    await engine.update_weights(weights, version=7)  # not held up by the pause
    await asyncio.sleep(0.2)
    assert len(engine._batch.sequences[0].token_ids) == length < 300
    assert not held.done()
    assert not late.done()
    await asyncio.to_thread(engine.resume)
    generation = await held
    assert generation.token_ids == whole.token_ids, "the weights were the same"
    assert generation.swaps == ((length, 7),)
    assert (await late).weights_version == 7


async def test_a_paused_engine_can_be_closed(engine: TransformersEngine) -> None:
    await asyncio.to_thread(engine.pause)
    held = asyncio.create_task(engine.generate([4], Sampling(max_tokens=2), session="a"))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineFailure, match="closed"):
        await held
