"""What an episode costs in memory while it waits for the engine, and 10^5 of them in one process.

Every episode is played by `run_episode` in an environment of its own until it has about 2,000 tokens. Texts differ from
episode to episode, so that none is shared. Then the engine keeps the next turn waiting, for all episodes at once. What
counts is what the process has grown by, as the operating system sees it: tokens, texts, records, environments,
coroutines, timers and all, over 9 bytes a token (4 id, 4 log-prob, 1 mask).

    model        a prompt of 250 tokens, then 7 turns of 200 by the model and 50 by the environment
    environment  a prompt of 250 tokens, then 7 turns of 75 by the model and 175 by the environment
    tools        a prompt of 250 tokens, then 7 turns of 150 by the model, each with a tool call, and 100 of result

Exits 1 if an episode of any kind takes more than 1.5 times that.

Run: python -m benchmarks.suspended_episodes [--quick] [--episodes 100000] [--kind model]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks import results
from transformers import AutoTokenizer

from turnsmith import BaseEnvironment, Chat, EnvironmentConfig, Generation, Limits, Sampling, tool
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.models import resolve
from turnsmith.rollout.episode import EpisodeStart, run_episode
from turnsmith.trajectory import Trajectory

TURNS = 7
LIMIT = 1.5
"""Times 9 bytes a token."""
KINDS = {"model": (200, 38, 220), "environment": (75, 150, 220), "tools": (115, 75, 60)}
"""Tokens that the model says, words that the environment or the tool answers, words of the first observation."""
AT_ONCE = 256
"""Episodes on their way to the point where they wait; those that wait are not counted."""
TEXT = "the parcel of your order is late because a van broke down near Lyon and nobody told us in time so we ask"
WORDS = TEXT.split()
CALL = '\n<tool_call>\n{"name": "look_up", "arguments": {"order": 1007, "field": "status"}}\n</tool_call>'


class Talk(BaseEnvironment):
    """Says something new at every step."""

    answer = 0

    def reset(self, seed: int = 0) -> str:
        self.random = random.Random(seed).getrandbits(31)
        _, self.answer, opening = KINDS[str(self.config.kind)]
        return self.say(opening)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self.say(self.answer), 0.0, False, {}

    def say(self, words: int) -> str:
        """So many words, of which most are one token."""
        said = []
        for _ in range(words):
            self.random = (self.random * 1103515245 + 12345) & 0x7FFFFFFF
            said.append(WORDS[(self.random >> 8) % len(WORDS)])
        return " ".join(said)


class Desk(Talk):
    """The same through a tool."""

    @tool
    def look_up(self, order: int, field: str) -> str:
        """Look something up in an order."""
        return self.say(self.answer)


class Waiting:
    """An engine that answers `TURNS` times and then never again."""

    def __init__(self, tokenizer: Any, chat: Chat, kind: str) -> None:
        self.length = KINDS[kind][0]
        self.ending = [*(chat.encode(CALL) if kind == "tools" else ()), chat.close_id]
        self.words = [tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in WORDS]
        self.suspended = 0
        self.tokens = 0
        self.parked: list[asyncio.Future[Generation]] = []
        self.turns: dict[str, int] = {}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        turn = self.turns.get(session, 0)
        if turn == TURNS:
            del self.turns[session]
            self.suspended += 1
            self.tokens += len(prompt_ids)
            future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
            self.parked.append(future)
            return await future
        self.turns[session] = turn + 1
        draws = random.Random(f"{session}/{turn}")
        await asyncio.sleep(0)
        ids = [*draws.choices(self.words, k=self.length - 1), *self.ending]
        return Generation(ids, [draws.random() - 1.0 for _ in ids])

    def give_up(self) -> None:
        """Answer everybody, with an error."""
        for future in self.parked:
            future.set_exception(RuntimeError("enough"))
        self.parked.clear()


def resident() -> int:
    """Bytes of memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def suspend(engine: Waiting, chat: Chat, kind: str, episodes: int) -> list[asyncio.Task[Trajectory]]:
    """Start so many episodes and return when all of them wait for the engine."""
    environment = EnvironmentSpec.of(Desk if kind == "tools" else Talk, EnvironmentConfig(kind=kind))
    limits, sampling = Limits(turns=20, tokens=8192, prompt_tokens=2048, seconds=3600), Sampling()
    tasks: list[asyncio.Task[Trajectory]] = []
    until = engine.suspended + episodes
    for number in range(episodes):
        start = EpisodeStart(f"episode-{engine.suspended}-{number}", seed=number)
        played = run_episode(start, environment=environment, engine=engine, chat=chat, limits=limits, sampling=sampling)
        tasks.append(asyncio.get_running_loop().create_task(played))
        while len(tasks) - (engine.suspended - until + episodes) >= AT_ONCE:
            await asyncio.sleep(0)
    while engine.suspended < until:
        await asyncio.sleep(0.001)
    return tasks


async def measure(kind: str, episodes: int) -> float:
    """Print what `episodes` suspended ones cost; returns bytes over 9 bytes a token."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2"))
    chat = Chat(tokenizer)
    engine = Waiting(tokenizer, chat, kind)
    warm = await suspend(engine, chat, kind, 2 * AT_ONCE)  # threads, caches and the allocator's first arenas
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free, but not given back yet, would hide what is taken
    before, known, began = resident(), engine.tokens, time.process_time()
    tasks = await suspend(engine, chat, kind, episodes)
    gc.collect()
    grown, tokens = resident() - before, engine.tokens - known
    waiting = sum(not task.done() for task in tasks)
    assert waiting == episodes, f"{episodes - waiting} episodes are not waiting"
    ratio = grown / (9 * tokens)
    print(
        f"{kind}: {episodes:,} suspended episodes of {tokens / episodes:,.0f} tokens: {grown / 2**30:.2f} GiB, "
        f"{grown / episodes:,.0f} bytes each, {grown / tokens:.2f} a token: {ratio:.2f} x 9 bytes a token "
        f"({time.process_time() - began:.0f} s of CPU to get there)",
        flush=True,
    )
    engine.give_up()
    ended = await asyncio.gather(*warm, *tasks)
    assert all(len(trajectory.turns) == TURNS for trajectory in ended), "an episode lost its turns"
    return ratio


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="3,000 episodes of each kind: two minutes")
    parser.add_argument("--episodes", type=int, default=100_000, help="of the kind `model`; a tenth of the others")
    parser.add_argument("--kind", choices=KINDS, action="append")
    results.add_option(parser)
    options = parser.parse_args()
    missed: list[str] = []
    found: dict[str, float] = {}
    for kind in options.kind or KINDS:
        episodes = 3000 if options.quick else options.episodes if kind == "model" else options.episodes // 10
        # In a process of its own: what one kind has freed must not serve the next.
        queue: multiprocessing.SimpleQueue[float] = multiprocessing.SimpleQueue()
        process = multiprocessing.Process(target=_measure, args=(kind, episodes, queue))
        process.start()
        process.join()
        missed += [kind] * bool(process.exitcode)
        if not queue.empty():
            found |= {kind: queue.get(), f"{kind}_episodes": episodes}
    results.record("suspended_episodes", found, is_wanted=options.json)
    print(f"missed: {', '.join(missed)}" if missed else f"holds: at most {LIMIT} x 9 bytes a token")
    raise SystemExit(bool(missed))


def _measure(kind: str, episodes: int, queue: multiprocessing.SimpleQueue[float]) -> None:
    ratio = asyncio.run(measure(kind, episodes))
    queue.put(ratio)
    raise SystemExit(exit_code(ratio))


def exit_code(ratio: float) -> int:
    """1 if an episode takes too much."""
    return int(ratio > LIMIT)


if __name__ == "__main__":
    main()
