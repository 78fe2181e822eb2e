"""Tokens a second through our multi-turn rollout, beside the bare vLLM engine on the same token work.

64 episodes are in flight. Each has 3 turns of 24 sampled tokens, with an observation of about 40 tokens between them;
the environment's steps are instant, and stop tokens are ignored so that all turns have the same length.

    turnsmith  `run_episode` over `VLLMEngine`: chat template, environment off the event loop, checks, record.
    bare      vLLM's `AsyncLLM` itself, on the event loop it lives on: prompt tokens in, sampled tokens out, with the
              observation's tokens ready made. Nothing else.

Both ask for log-probs, because training needs them, and both extend the prompt by what was sampled, so that the prefix
cache can do the same for both. They take turns within each round; the prefix cache is emptied before each. Shown are
the ratio of tokens a second, and of the CPU time of all processes, which other work on the machine moves less.

Prefill: how many prompt tokens vLLM computed, by its own count (prompt tokens less `num_cached_tokens`), over what an
ideal prefix cache of the same block size must compute for the same requests: one of endless size, which knows all
tokens of every request as soon as they are computed.

Exits 1 if the median of the rounds has less than 0.97 of the bare engine's tokens a wall-clock second. With `--quick`
nothing is judged: beside the tiny model everything else is large.

Run: python -m benchmarks.rollout_throughput [--rounds 4] [--model smollm2] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
from benchmarks import results
from benchmarks.rounds import check_rounds, in_turn, median_ratio
from transformers import AutoTokenizer

from turnsmith import BaseEnvironment, Chat, Generation, Limits, Sampling
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engines.vllm_engine import VLLMEngine
from turnsmith.inference.models import resolve
from turnsmith.rollout.episode import EpisodeStart, run_episode
from turnsmith.trajectory import Outcome

IN_FLIGHT = 64
LIMIT = 0.97
"""Of the bare engine's tokens."""
TASK = (
    "You look after a small greenhouse. Every day you are told how warm and how wet it is, and you say in a few words "
    "what you do: open or close the roof, water the plants, or wait. Plants suffer above 30 and below 12 degrees."
)
REPORT = (
    "A day has passed. It is now 24 degrees warm in the greenhouse, the soil is half wet, and the sky is clear. "
    "The tomatoes look well. What do you do?"
)
NAMES = count()


class Greenhouse(BaseEnvironment):
    """Says the same every day, at once."""

    def reset(self, seed: int = 0) -> str:
        return f"Greenhouse {seed:05d}. {REPORT}"

    def get_prompt_prefix(self) -> str:
        return TASK

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return REPORT, 0.0, False, {}


@dataclass
class Work:
    """What both sides do."""

    engine: VLLMEngine
    chat: Chat
    turns: int
    tokens: int
    episodes: int
    seen: list[tuple[list[int], int, list[int]]] = field(default_factory=list)
    """Of each request: its prompt, how many tokens of it came from the prefix cache, what was sampled."""


class EndlessTurns:
    """The engine without stop tokens, so that every turn has its full length."""

    def __init__(self, engine: VLLMEngine) -> None:
        self.engine = engine

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        return await self.engine.generate(prompt_ids, replace(sampling, stop_token_ids=()), session=session)


async def play_ours(work: Work) -> int:
    """All episodes through `run_episode`; returns the number of sampled tokens."""
    environment, engine = EnvironmentSpec.of(Greenhouse), EndlessTurns(work.engine)
    limits = Limits(turns=work.turns, tokens=4096)
    sampling = Sampling(max_tokens=work.tokens)

    async def play(number: int) -> int:
        start = EpisodeStart(f"episode-{next(NAMES)}", seed=number)
        played = await run_episode(
            start, environment=environment, engine=engine, chat=work.chat, limits=limits, sampling=sampling
        )
        assert played.outcome is Outcome.TURN_LIMIT, played.error
        return sum(played.tokens.mask)

    return await _keep_in_flight(play, work.episodes)


async def play_bare(work: Work) -> int:
    """The same requests straight to `AsyncLLM`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    observation = [{"role": "user", "content": REPORT}]
    bridge = work.chat.bridge(observation, closed=False)
    openings = [
        work.chat.open(
            [
                {"role": "system", "content": TASK},
                {"role": "user", "content": f"Greenhouse {number:05d}. {REPORT}"},
            ]
        )
        for number in range(work.episodes)
    ]

    async def play(number: int) -> int:
        ids, sampled = list(openings[number]), 0
        for turn in range(work.turns):
            if turn:
                ids += bridge
            params = SamplingParams(
                max_tokens=work.tokens,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = {"type": "token", "prompt_token_ids": list(ids)}
            async for output in work.engine._llm.generate(prompt, params, f"bare-{next(NAMES)}"):
                said = output.outputs[0].token_ids
            ids += said
            sampled += len(said)
        return sampled

    return await _keep_in_flight(play, work.episodes)


async def _keep_in_flight(play: Any, episodes: int) -> int:
    numbers = iter(range(episodes))

    async def worker() -> int:
        return sum([await play(number) for number in numbers])

    return sum(await asyncio.gather(*(worker() for _ in range(IN_FLIGHT))))


@contextmanager
def watched(work: Work) -> Iterator[None]:
    """Note what vLLM says about each request."""
    plain = work.engine._llm.generate

    async def generate(prompt: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async for output in plain(prompt, *args, **kwargs):
            ids = prompt["prompt_token_ids"]
            work.seen.append((ids, int(output.num_cached_tokens or 0), list(output.outputs[0].token_ids)))
            yield output

    work.engine._llm.generate = generate
    try:
        yield
    finally:
        del work.engine._llm.generate


def ideal_prefill(seen: list[tuple[list[int], int, list[int]]], block: int) -> int:
    """Prompt tokens that a perfect prefix cache with blocks of this size leaves to compute."""
    known: set[tuple[int, ...]] = set()
    needed = 0
    for prompt, _, said in sorted(seen, key=lambda request: len(request[0])):  # turn by turn
        # The last token is always computed: its logits are needed.
        hit = 0
        while hit + block < len(prompt) and tuple(prompt[: hit + block]) in known:
            hit += block
        needed += len(prompt) - hit
        # The last sampled token is never computed by the request that samples it.
        ids = prompt + said[:-1]
        known.update(tuple(ids[:end]) for end in range(block, len(ids) + 1, block))
    return needed


def cpu_seconds() -> float:
    """CPU time of this process and of vLLM's."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def measure(work: Work, who: str) -> tuple[float, float]:
    """Tokens a wall-clock second and tokens a CPU second."""
    work.engine._loop.run(work.engine._llm.reset_prefix_cache())
    cpu, began = cpu_seconds(), time.perf_counter()
    tokens = work.engine._loop.run(play_bare(work)) if who == "bare" else asyncio.run(play_ours(work))
    assert tokens == work.episodes * work.turns * work.tokens, tokens
    return tokens / (time.perf_counter() - began), tokens / (cpu_seconds() - cpu)


def report_prefill(work: Work) -> None:
    """One more round of ours, and what vLLM computed in it."""
    work.engine._loop.run(work.engine._llm.reset_prefix_cache())
    with watched(work):
        asyncio.run(play_ours(work))
    config = work.engine._llm.vllm_config.cache_config
    computed = sum(len(prompt) - cached for prompt, cached, _ in work.seen)
    ideal = ideal_prefill(work.seen, config.block_size)
    finest = ideal_prefill(work.seen, 1)
    whole = sum(len(prompt) for prompt, _, _ in work.seen)
    print(
        f"prefill: {computed:,} tokens computed of {whole:,} in the prompts; an ideal cache in blocks of "
        f"{config.block_size} computes {ideal:,}: ratio {computed / ideal:.3f} (in blocks of 1: {finest:,})"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="the tiny model and 2 rounds; most of it is vLLM's start")
    results.add_option(parser)
    options = parser.parse_args()
    check_rounds(parser, options)
    if options.quick:
        options.model, options.rounds = "tiny", 2
    path = resolve(options.model)
    # Not bfloat16: a CPU without instructions for it is twenty times slower in it.
    engine = VLLMEngine(path, dtype="float32", max_model_len=2048, cpu_cache_gib=2.0)
    work = Work(engine, Chat(AutoTokenizer.from_pretrained(path)), turns=3, tokens=24, episodes=IN_FLIGHT)
    try:
        measure(work, "bare")  # the first round pays for what is made on first use
        found: dict[str, list[tuple[float, float]]] = {"bare": [], "turnsmith": []}
        for who in in_turn(("bare", "turnsmith"), options.rounds):
            found[who].append(measure(work, who))
            wall, cpu = found[who][-1]
            print(f"{who:9} {wall:7.1f} tokens a second, {cpu:7.1f} a CPU second", flush=True)
        ratios: dict[str, float] = {}
        for place, what in enumerate(("wall-clock", "CPU")):
            ours, bare = ([one[place] for one in found[who]] for who in ("turnsmith", "bare"))
            ratios[what] = median_ratio(ours, bare)
            print(f"turnsmith / bare, tokens a {what} second: median of the rounds {ratios[what]:.3f}")
        figures = {"ratio": ratios["wall-clock"], "cpu_ratio": ratios["CPU"], "rounds": options.rounds}
        results.record("rollout_throughput", figures, is_wanted=options.json)
        report_prefill(work)
    finally:
        engine.close()
    missed = [] if options.quick else misses(ratios)
    print("missed: " + "; ".join(missed) if missed else "not judged" if options.quick else f"holds: at least {LIMIT}")
    raise SystemExit(bool(missed))


def misses(ratios: dict[str, float]) -> list[str]:
    """Whether the ratio that is published is under the limit."""
    ratio = ratios["wall-clock"]
    return [f"tokens a wall-clock second: {ratio:.3f} < {LIMIT} of the bare engine's"] * (ratio < LIMIT)


if __name__ == "__main__":
    main()
