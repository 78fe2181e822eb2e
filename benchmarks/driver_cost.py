"""What driving an episode costs, beside a loop written by hand and beside verl's `ToolAgentLoop`.

Every episode has 8 turns with one tool call each and a last turn that answers in words. The engine is instant: it has
the tokens ready, and gives the event loop one chance to switch episodes. All loops get the same tokens from it, offer
the same two tools and tell the model the same results; the tokenizer is SmolLM2's. Time is the process's CPU time, of
all its threads, over the turns with a tool call: other processes on the machine hardly move it.

    by hand   messages through the chat template once, then token-exact: what the model said is never encoded again.
              The tool is called on the event loop; nothing is checked, and only tokens, mask and log-probs are kept.
              Once with the tokenizer as transformers has it, once with the Rust one under it.
    turnsmith `run_episode`, with its checks, limits, outcome and whole record; once with plain tools, which run off
              the event loop because a plain function may block, once with async tools.
    verl      `ToolAgentLoop` of verl 0.9.1 with its Hermes parser and async tools.

Eight episodes in a row have the same opening, as the episodes of a group do. The loops take turns within each round, in
alternating order; shown are the least, and the median over all rounds of the ratio to the faster loop by hand. Exits 1
if that median is above `LIMITS` for turnsmith with plain tools, which is also what is recorded. With one episode in
flight nothing overlaps the switch to the tool's thread and back, so that limit is higher.

Run: python -m benchmarks.driver_cost [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import io
import json
import logging
import os
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, islice
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks import results
from benchmarks.rounds import in_turn, median_ratio
from transformers import AutoTokenizer

from turnsmith import BaseEnvironment, Chat, Generation, Limits, Sampling, ToolRegistry
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.models import resolve
from turnsmith.rollout.episode import EpisodeStart, run_episode
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.trajectory import Outcome

TURNS = 8
QUESTION = "Where is my order {}? It should have come on Monday, and nobody answers the phone."
GROUP = 8
ANSWER = "Your order 1007 is with the carrier. It comes tomorrow; I have sent you the link to follow it."
LIMITS = {1: 3.0, 64: 2.5, 512: 2.5}
"""For each number in flight: the most that turnsmith with plain tools may cost over the faster loop by hand.

Medians were between 1.2 and 2.8 on the machines of 2026."""
BY_HAND = ("by hand", "by hand, Rust encoder")
NUMBERS = count()
Episode = Callable[[int], Awaitable[int]]
"""Plays the episode of this number, used once only, and says how many tokens it has."""


def question(number: int) -> str:
    """The opening of an episode, the same for all episodes of its group."""
    return QUESTION.format(100_000 + number // GROUP)


def find_order(order: int) -> str:
    """Look up an order.

    Args:
        order: Its number.
    """
    return f'{{"order":{order},"status":"shipped","carrier":"Blue Van","parcels":2,"paid":true,"total":"84.50"}}'


async def find_order_async(order: int) -> str:
    """Look up an order.

    Args:
        order: Its number.
    """
    return find_order(order)


class Desk(BaseEnvironment):
    """Ends with the first answer in words."""

    def reset(self, seed: int = 0) -> str:
        return question(seed)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 1.0, True, {}


class Instant:
    """An engine that has all tokens ready; the same object is verl's server."""

    def __init__(self, tokenizer: Any) -> None:
        call = 'I look it up.\n<tool_call>\n{"name": "find_order", "arguments": {"order": %d}}\n</tool_call>'
        calls = [call % (1000 + turn) for turn in range(TURNS)]
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.turns = [[*tokenizer.encode(text, add_special_tokens=False), end] for text in (*calls, ANSWER)]
        self.log_probs = [[-0.25] * len(ids) for ids in self.turns]
        self.place: dict[str, int] = {}

    async def reply(self, session: str) -> tuple[list[int], list[float]]:
        """The next turn of an episode."""
        place = self.place.get(session, 0)
        self.place[session] = place + 1
        await asyncio.sleep(0)
        return list(self.turns[place]), list(self.log_probs[place])

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """turnsmith's seam."""
        return Generation(*await self.reply(session))


def turnsmith_loop(tokenizer: Any, engine: Instant, tool: Callable[..., Any]) -> Episode:
    """Our loop."""
    chat, environment, parser = Chat(tokenizer), EnvironmentSpec.of(Desk), FunctionCallingParser()
    tools = ToolRegistry([_named(tool)])
    limits, sampling = Limits(turns=20, tokens=8192, prompt_tokens=2048), Sampling()

    async def play(number: int) -> int:
        start = EpisodeStart(f"episode-{number}", seed=number)
        played = await run_episode(
            start,
            environment=environment,
            engine=engine,
            chat=chat,
            limits=limits,
            sampling=sampling,
            tools=tools,
            parser=parser,
        )
        assert played.outcome is Outcome.COMPLETED, played.error
        assert played.num_turns == TURNS + 1
        return len(played.tokens)

    return play


def _named(tool: Callable[..., Any]) -> Any:
    from turnsmith import tool as as_tool

    return as_tool(name="find_order")(tool)


def _system_prompt() -> str:
    return FunctionCallingParser().instructions(ToolRegistry([_named(find_order)]).definitions())


def loop_by_hand(tokenizer: Any, engine: Instant, *, rust: bool = False) -> Episode:
    """What a person writes who needs no more than the tokens; `rust`: who knows what is under the tokenizer, too."""
    system = _system_prompt()
    backend = tokenizer.backend_tokenizer
    tools: dict[str, Callable[..., str]] = {"find_order": find_order}
    pattern = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

    async def play(number: int) -> int:
        session = f"episode-{number}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question(number)}]
        ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        mask, log_probs = [0] * len(ids), [0.0] * len(ids)
        while True:
            said, likely = await engine.reply(session)
            ids += said
            mask += [1] * len(said)
            log_probs += likely
            found = pattern.search((backend if rust else tokenizer).decode(said, skip_special_tokens=True))
            if found is None:
                break
            call = json.loads(found[1])
            result = tools[call["name"]](**call["arguments"])
            text = f"Tool result ({call['name']}): {result}"
            text = f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            encode = backend.encode if rust else tokenizer.encode
            encoded = encode(text, add_special_tokens=False)
            bridge = encoded.ids if rust else encoded
            ids += bridge
            mask += [0] * len(bridge)
            log_probs += [0.0] * len(bridge)
        assert len(ids) == len(mask) == len(log_probs)
        return len(ids)

    return play


def verl_loop(tokenizer: Any, engine: Instant) -> Episode:
    """verl's own loop for tools, one object an episode, as verl makes it."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.function_tool import FunctionTool, _build_schema_from_fn
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    multi_turn = {
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 1,
        "max_tool_response_length": 4096,
        "tool_response_truncate_side": "middle",
        "format": "hermes",
    }
    rollout = {"multi_turn": multi_turn, "prompt_length": 2048, "response_length": 8192, "full_determinism": False}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    schema = _build_schema_from_fn(find_order_async, "find_order")
    tools = ToolListWrap([FunctionTool("find_order", find_order_async, schema, is_async=True)])
    system = _system_prompt()

    class Server:
        async def generate(self, request_id: str, **unused: Any) -> TokenOutput:
            said, likely = await engine.reply(request_id)
            return TokenOutput(token_ids=said, log_probs=likely, stop_reason="completed")

    server = Server()

    async def play(number: int) -> int:
        loop = ToolAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=server,
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=tools,
        )
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question(number)}]
        output = await loop.run({"temperature": 1.0}, raw_prompt=messages)
        assert output.num_turns == 2 * TURNS + 2, output.num_turns
        return len(output.prompt_ids) + len(output.response_ids)

    return play


async def play_all(play: Episode, episodes: int, at_once: int) -> None:
    """Play so many episodes with so many of them in flight."""
    numbers = islice(NUMBERS, episodes)

    async def worker() -> None:
        for number in numbers:
            await play(number)

    await asyncio.gather(*(worker() for _ in range(at_once)))


def cost(play: Episode, episodes: int, at_once: int) -> float:
    """CPU microseconds a turn."""
    gc.collect()
    began = time.process_time()
    asyncio.run(play_all(play, episodes, at_once))
    return (time.process_time() - began) / (episodes * TURNS) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only 64 in flight, without verl: about a minute")
    parser.add_argument("--no-verl", action="store_true")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each number in flight; 7, quick 40")
    results.add_option(parser)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2"))
    engine = Instant(tokenizer)
    loops = {
        "by hand": loop_by_hand(tokenizer, engine),
        "by hand, Rust encoder": loop_by_hand(tokenizer, engine, rust=True),
        "turnsmith, plain tool": turnsmith_loop(tokenizer, engine, find_order),
        "turnsmith, async tool": turnsmith_loop(tokenizer, engine, find_order_async),
    }
    if not options.quick and not options.no_verl:
        logging.disable(logging.WARNING)
        with contextlib.redirect_stdout(io.StringIO()):
            loops["verl ToolAgentLoop"] = verl_loop(tokenizer, engine)
    lengths = {name: asyncio.run(_length(play)) for name, play in loops.items()}
    print(f"tokens of an episode: {lengths}")
    # Imported libraries hold a million objects; a full collection of those would land on whoever happens to run then.
    gc.collect()
    gc.freeze()
    missed: list[str] = []
    found: dict[str, float] = {}
    for at_once, episodes in ((1, 128), (64, 128), (512, 512)) if not options.quick else ((64, 64),):
        ratios = report(loops, episodes, at_once, options.rounds or (40 if options.quick else 7))
        missed += misses(at_once, ratios["turnsmith, plain tool"])
        for key, loop in (("turnsmith", "turnsmith, plain tool"), ("verl", "verl ToolAgentLoop")):
            found |= {f"{key}_{at_once}": ratios[loop]} if loop in ratios else {}
    gc.unfreeze()  # or they would not be cleaned up at the end
    results.record("driver_cost", found, is_wanted=options.json)
    print("missed: " + "; ".join(missed) if missed else f"holds: at most {LIMITS} times the loop by hand")
    raise SystemExit(bool(missed))


def misses(at_once: int, ratio: float) -> list[str]:
    """What is over its limit."""
    return [f"{at_once} in flight: {ratio:.2f} > {LIMITS[at_once]}"] * (ratio > LIMITS[at_once])


async def _length(play: Episode) -> int:
    return await play(next(NUMBERS))


def report(loops: dict[str, Episode], episodes: int, at_once: int, rounds: int) -> dict[str, float]:
    """Measure all loops in turn and print a line for each; returns the ratios to the faster loop by hand."""
    costs: dict[str, list[float]] = {name: [] for name in loops}
    for name in in_turn(list(loops), rounds):
        costs[name].append(cost(loops[name], episodes, at_once))
    hand = list(map(min, *(costs[name] for name in BY_HAND)))
    ratios: dict[str, float] = {}
    print(f"{at_once} in flight, CPU us a turn")
    for name, found in costs.items():
        ratios[name] = median_ratio(found, hand)
        print(
            f"  {name:22} least {min(found):7.0f}   median {statistics.median(found):7.0f}   "
            f"over the faster by hand: {ratios[name]:5.2f}, the median of the rounds",
            flush=True,
        )
    return ratios


if __name__ == "__main__":
    main()
