"""The batch against plain transformers: same tokens and log-probs as sequences join and leave."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.continuous_batch import ContinuousBatch, Sequence, check_model

VOCABULARY = 100


@pytest.fixture(scope="module")
def model(tiny_folder: str) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    # The weights of a fresh model are so small that all its distributions are nearly flat; these are peaked.
    with torch.no_grad():
        for parameter in loaded.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    loaded.generation_config.eos_token_id = None  # transformers' own loop runs to its last token too
    return loaded


def prompt(length: int, start: int = 4) -> list[int]:
    return [4 + (start * 31 + place * 17) % (VOCABULARY - 4) for place in range(length)]


def run_to_the_end(batch: ContinuousBatch) -> None:
    while batch.sequences:
        batch.step()


def generated_by_transformers(model: Any, prompt_ids: list[int], count: int) -> list[int]:
    output = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=count,
    )
    return output[0, len(prompt_ids) :].tolist()


@torch.inference_mode()
def plain_log_probs(model: Any, sequence: Sequence) -> torch.Tensor:
    """All log-probs at the places of the sampled tokens, from one forward pass without any cache."""
    ids = torch.tensor([sequence.prompt_ids + sequence.token_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(sequence.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits / sequence.sampling.temperature, dim=-1)


def joined_one_after_another(model: Any, sequences: list[Sequence]) -> None:
    """Each sequence joins two tokens after the one before it."""
    batch = ContinuousBatch(model)
    for sequence in sequences:
        batch.join([sequence])
        for _ in range(2):
            if batch.sequences:
                batch.step()
    run_to_the_end(batch)


def test_greedy_tokens_are_those_of_transformers_as_sequences_join_and_leave(model: Any) -> None:
    shapes = [(5, 12), (17, 3), (1, 9), (30, 6), (3, 1), (9, 20)]
    sequences = [
        Sequence(prompt(length, start), Sampling(max_tokens=count, temperature=0.0))
        for start, (length, count) in enumerate(shapes)
    ]
    joined_one_after_another(model, sequences)
    for sequence, (_, count) in zip(sequences, shapes, strict=True):
        assert sequence.token_ids == generated_by_transformers(model, sequence.prompt_ids, count)


def test_prompts_of_different_lengths_may_join_together(model: Any) -> None:
    sequences = [Sequence(prompt(length), Sampling(max_tokens=8, temperature=0.0)) for length in (2, 11, 1, 24)]
    batch = ContinuousBatch(model)
    batch.join(sequences)
    run_to_the_end(batch)
    for sequence in sequences:
        assert sequence.token_ids == generated_by_transformers(model, sequence.prompt_ids, 8)


def test_a_model_with_learned_positions_takes_prompts_of_different_lengths() -> None:
    torch.manual_seed(0)
    settings: Any = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": VOCABULARY}
    learned = GPT2LMHeadModel(GPT2Config(**settings, bos_token_id=None, eos_token_id=None)).eval()
    together = [Sequence(prompt(length), Sampling(max_tokens=4, temperature=0)) for length in (3, 9)]
    batch = ContinuousBatch(learned)
    batch.join(together)
    run_to_the_end(batch)
    assert [one.token_ids for one in together] == [
        generated_by_transformers(learned, one.prompt_ids, 4) for one in together
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_log_probs_are_those_of_a_plain_forward_pass(model: Any, temperature: float) -> None:
    sequences = [
        Sequence(prompt(length, start), Sampling(max_tokens=count, temperature=temperature, seed=start))
        for start, (length, count) in enumerate([(6, 15), (19, 4), (2, 11)])
    ]
    joined_one_after_another(model, sequences)
    for sequence in sequences:
        expected = plain_log_probs(model, sequence).gather(1, torch.tensor(sequence.token_ids).unsqueeze(1))[:, 0]
        assert torch.tensor(sequence.log_probs) == pytest.approx(expected, abs=1e-5)
        assert min(sequence.log_probs) < -0.1, "a distribution that is never in doubt would prove nothing"


def test_greedy_log_probs_are_those_of_temperature_one(model: Any) -> None:
    greedy = Sequence(prompt(7), Sampling(max_tokens=3, temperature=0.0))
    joined_one_after_another(model, [greedy])
    again = Sequence(greedy.prompt_ids, Sampling(max_tokens=3), token_ids=list(greedy.token_ids))
    assert greedy.log_probs == pytest.approx(plain_log_probs(model, again).max(dim=1).values.tolist(), abs=1e-5)


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(model: Any) -> None:
    def sampled(others_before: int, others_with: int) -> list[int]:
        batch = ContinuousBatch(model)
        for other in range(others_before):
            batch.join([Sequence(prompt(3 + 5 * other, other), Sampling(max_tokens=7 + other, seed=100 + other))])
            batch.step()
        own = Sequence(prompt(8), Sampling(max_tokens=12, seed=7))
        others = [Sequence(prompt(2 + other, other), Sampling(max_tokens=2 + other)) for other in range(others_with)]
        batch.join([*others, own])
        run_to_the_end(batch)
        return own.token_ids

    alone = sampled(0, 0)
    assert sampled(2, 0) == sampled(0, 3) == sampled(3, 2) == alone


def test_different_seeds_and_no_seed_give_different_tokens(model: Any) -> None:
    batch = ContinuousBatch(model)
    sequences = [Sequence(prompt(8), Sampling(max_tokens=12, seed=seed)) for seed in (1, 2, None, None)]
    batch.join(sequences)
    run_to_the_end(batch)
    assert len({tuple(sequence.token_ids) for sequence in sequences}) == 4


def test_tokens_are_sampled_as_often_as_their_probability_says(model: Any) -> None:
    batch = ContinuousBatch(model)
    sequences = [Sequence(prompt(5), Sampling(max_tokens=1)) for _ in range(4000)]
    for seed, sequence in enumerate(sequences):
        sequence.rng = random.Random(seed)  # a seed to sample by would have each prefilled alone
    batch.join(sequences)
    expected = plain_log_probs(model, sequences[0])[0].exp()
    drawn = torch.bincount(torch.tensor([sequence.token_ids[0] for sequence in sequences]), minlength=len(expected))
    likely = expected > 0.02
    assert likely.any()
    deviation = (expected * (1 - expected) / len(sequences)).sqrt()
    assert ((drawn / len(sequences) - expected).abs() < 5 * deviation)[likely].all()


def test_top_k_samples_only_the_best_and_renormalises(model: Any) -> None:
    sequence = Sequence(prompt(9), Sampling(max_tokens=25, top_k=3, seed=1))
    joined_one_after_another(model, [sequence])
    best = plain_log_probs(model, sequence).topk(3)
    expected = best.values - best.values.logsumexp(dim=1, keepdim=True)
    for place, token_id in enumerate(sequence.token_ids):
        rank = (best.indices[place] == token_id).nonzero()
        assert len(rank) == 1, "a token outside the best 3 was drawn"
        assert sequence.log_probs[place] == pytest.approx(expected[place, rank.item()].item(), abs=1e-5)


def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_renormalises(model: Any) -> None:
    sequence = Sequence(prompt(9), Sampling(max_tokens=25, top_p=0.6, seed=1))
    joined_one_after_another(model, [sequence])
    probabilities = plain_log_probs(model, sequence).double().exp()
    for place, token_id in enumerate(sequence.token_ids):
        ordered, index = probabilities[place].sort(descending=True)
        kept = int((ordered.cumsum(0) < 0.6).sum()) + 1
        assert token_id in index[:kept].tolist()
        share = probabilities[place, token_id] / ordered[:kept].sum()
        assert sequence.log_probs[place] == pytest.approx(math.log(share), abs=1e-5)


def test_the_smallest_top_p_and_top_k_of_one_take_the_best_token(model: Any) -> None:
    sequences = [
        Sequence(prompt(9), Sampling(max_tokens=6, **bounds, seed=5)) for bounds in ({"top_k": 1}, {"top_p": 0.0})
    ]
    batch = ContinuousBatch(model)
    batch.join(sequences)
    run_to_the_end(batch)
    for sequence in sequences:
        assert sequence.token_ids == generated_by_transformers(model, sequence.prompt_ids, 6)
        assert sequence.log_probs == [0.0] * 6


def test_bounds_of_one_row_leave_the_others_untouched(model: Any) -> None:
    bounded = Sequence(prompt(9), Sampling(max_tokens=10, top_k=2, top_p=0.9, seed=5))
    free = Sequence(prompt(9), Sampling(max_tokens=10, seed=6))
    batch = ContinuousBatch(model)
    batch.join([bounded, free])
    run_to_the_end(batch)
    expected = plain_log_probs(model, free).gather(1, torch.tensor(free.token_ids).unsqueeze(1))[:, 0]
    assert torch.tensor(free.log_probs) == pytest.approx(expected, abs=1e-5)


def test_a_stop_token_is_kept_and_ends_the_sequence(model: Any) -> None:
    tokens = generated_by_transformers(model, prompt(5), 8)
    stop = tokens[3]
    sequence = Sequence(prompt(5), Sampling(max_tokens=8, temperature=0.0, stop_token_ids=(stop, 1)))
    joined_one_after_another(model, [sequence])
    assert sequence.token_ids == tokens[: tokens.index(stop) + 1]
    assert len(sequence.log_probs) == len(sequence.token_ids)
    assert sequence.stop_reason == "stop"


def test_max_tokens_ends_a_sequence_and_a_stop_token_in_the_last_place_still_counts_as_stop(model: Any) -> None:
    tokens = generated_by_transformers(model, prompt(5), 3)
    cut = Sequence(prompt(5), Sampling(max_tokens=3, temperature=0.0))
    ended = Sequence(prompt(5), Sampling(max_tokens=3, temperature=0.0, stop_token_ids=(tokens[2],)))
    joined_one_after_another(model, [cut])
    assert (cut.token_ids, cut.stop_reason) == (tokens, "length")
    if tokens[2] not in tokens[:2]:
        joined_one_after_another(model, [ended])
        assert (ended.token_ids, ended.stop_reason) == (tokens, "stop")


def test_a_sequence_of_one_token_never_enters_the_batch(model: Any) -> None:
    batch = ContinuousBatch(model)
    short = Sequence(prompt(5), Sampling(max_tokens=1))
    long = Sequence(prompt(3), Sampling(max_tokens=5))
    assert batch.join([short, long]) == [short]
    assert batch.sequences == [long]


def cache_lengths(batch: ContinuousBatch) -> set[int]:
    return {tensor.shape[2] for layer in batch._cache.layers for tensor in (layer.keys, layer.values)}


def test_the_cache_shrinks_when_the_longest_leaves(model: Any) -> None:
    batch = ContinuousBatch(model)
    longest = Sequence(prompt(40), Sampling(max_tokens=3, temperature=0.0))
    others = [Sequence(prompt(length), Sampling(max_tokens=20, temperature=0.0)) for length in (6, 9)]
    batch.join([*others, longest])
    assert cache_lengths(batch) == {40}
    batch.step()
    assert cache_lengths(batch) == {41}
    assert batch.step() == [longest]
    assert cache_lengths(batch) == {9 + 2}, "columns of a sequence that has left are still there"
    assert batch._mask.shape == (2, 11)
    run_to_the_end(batch)
    assert batch._cache is None, "an empty batch holds no memory"
    for sequence in others:
        assert sequence.token_ids == generated_by_transformers(model, sequence.prompt_ids, 20)


def test_a_batch_that_ran_empty_can_be_used_again(model: Any) -> None:
    batch = ContinuousBatch(model)
    for length in (12, 4):
        sequence = Sequence(prompt(length), Sampling(max_tokens=5, temperature=0.0))
        batch.join([sequence])
        run_to_the_end(batch)
        assert sequence.token_ids == generated_by_transformers(model, sequence.prompt_ids, 5)


def test_a_cancelled_sequence_leaves_and_the_others_go_on(model: Any) -> None:
    batch = ContinuousBatch(model)
    cancelled, other = (Sequence(prompt(length), Sampling(max_tokens=9, temperature=0.0)) for length in (20, 6))
    batch.join([cancelled, other])
    batch.step()
    cancelled.stop_reason = "abort"
    assert batch.remove_finished() == [cancelled]
    assert cache_lengths(batch) == {7}
    run_to_the_end(batch)
    assert other.token_ids == generated_by_transformers(model, other.prompt_ids, 9)


def test_nan_logits_are_an_error(tiny_folder: str) -> None:
    broken: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(EngineFailure, match="logits are NaN"):
        ContinuousBatch(broken).join([Sequence(prompt(3), Sampling())])


def test_a_model_without_a_plain_key_value_cache_is_rejected() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    recurrent = MambaForCausalLM(
        MambaConfig(vocab_size=20, hidden_size=16, state_size=4, num_hidden_layers=1, expand=2, time_step_rank=2)
    )
    with pytest.raises(EngineFailure, match=r"cannot batch MambaForCausalLM.*inference\.backend=vllm"):
        check_model(recurrent)


def bits_in_company(model: Any, company: int) -> tuple[list[int], list[float]]:
    """What one seeded sequence samples in a batch with others that come and go."""
    batch = ContinuousBatch(model)
    for other in range(company):
        batch.join([Sequence(prompt(3 + 7 * other, other), Sampling(max_tokens=4 + 3 * other, seed=50 + other))])
        batch.step()
    own = Sequence(prompt(21), Sampling(max_tokens=40, seed=3, temperature=0.9))
    batch.join([own])
    run_to_the_end(batch)
    return own.token_ids, own.log_probs


def test_a_seeded_sequence_is_bitwise_equal_in_every_batch(model: Any) -> None:
    alone = bits_in_company(model, 0)
    assert all(bits_in_company(model, company) == alone for company in (1, 5))


def test_without_a_seed_log_probs_depend_on_the_batch(model: Any) -> None:
    """The check above can fail: log-probs straight from a batch differ in their last bits."""

    def straight(company: int) -> list[float]:
        batch = ContinuousBatch(model)
        greedy = [
            Sequence(prompt(3 + 7 * other, other), Sampling(max_tokens=40, temperature=0.0)) for other in range(company)
        ]
        own = Sequence(prompt(21), Sampling(max_tokens=40, temperature=0.0))
        batch.join([*greedy, own])
        run_to_the_end(batch)
        return own.log_probs

    assert straight(0) == pytest.approx(straight(6), abs=1e-5)
    assert straight(0) != straight(6)


def test_a_token_changed_by_rounding_is_resampled_and_decoding_continues_from_it(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = bits_in_company(model, 0)
    step, calls = ContinuousBatch.step, 0

    @torch.inference_mode()
    def broken_step(batch: ContinuousBatch) -> list[Sequence]:
        nonlocal calls
        calls += 1
        if calls == 10:  # as if rounding had led to another token here
            own = batch.sequences[-1]
            own.token_ids[-1] = (own.token_ids[-1] + 1) % VOCABULARY
            batch._last = batch._last.clone()
            batch._last[-1] = own.token_ids[-1]
        return step(batch)

    monkeypatch.setattr(ContinuousBatch, "step", broken_step)
    assert bits_in_company(model, 0) == right
    assert calls == 39 + 30, "only the tokens after the wrong one are decoded again"


@pytest.mark.nightly
def test_where_rounding_changes_many_tokens_a_sequence_still_ends_and_is_the_same_in_every_batch(
    tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16).eval()
    settled: dict[int, list[int]] = {}
    resample_alone = ContinuousBatch._resample_alone

    def resample(batch: ContinuousBatch, sequence: Sequence, state: Any) -> None:
        resample_alone(batch, sequence, state)
        lengths = settled.setdefault(id(sequence), [])
        lengths.append(len(sequence.token_ids))
        assert sorted(set(lengths)) == lengths, "it has not come further than before"

    monkeypatch.setattr(ContinuousBatch, "_resample_alone", resample)
    # With passes of any length, the fifth token of the first seed led to a length that led to another fifth token.
    question = [45, 74, 81, 81, 84, 17, 5, 77, 84, 92, 5, 70, 87, 74, 5, 94, 84, 90, 36]
    samplings = [
        Sampling(max_tokens=64, temperature=0.7, top_p=0.9, stop_token_ids=(2,), seed=seed)
        for seed in (2081795347, *range(9))
    ]
    made = [[Sequence(question, sampling) for sampling in samplings] for _ in range(2)]
    for sequence in made[0]:
        joined_one_after_another(model, [sequence])
    joined_one_after_another(model, made[1])
    assert sum(map(len, settled.values())) > len(settled), "rounding changed no token"
    assert [one.token_ids for one in made[0]] == [one.token_ids for one in made[1]]
    assert [one.log_probs for one in made[0]] == [one.log_probs for one in made[1]]
