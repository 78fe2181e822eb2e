"""What a turn costs through the gateway, beside the same turn in an environment; and whether history makes it dearer.

Agents and environments run in worker processes, so that the CPU time of this process is turnsmith's. The engine is
scripted. Growth: the CPU time of a conversation by its tokens, as the slope on a log-log scale; 1 is linear. Exits 1
above `MOST_MILLISECONDS` a turn, or `MOST_SLOPE`.

Run: python -m benchmarks.gateway [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from typing import Any

from transformers import AutoTokenizer

from turnsmith import BaseEnvironment, Chat, ScriptedEngine
from turnsmith.config import EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.gateway.dialects import ChatCompletions
from turnsmith.gateway.dialects.base import KnownMessages
from turnsmith.gateway.forest import Forest
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.models import resolve
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits
from turnsmith.tools.parsing import FunctionCallingParser

TURNS = 8
MOST_MILLISECONDS, MOST_SLOPE = 1.0, 1.1


class Echo(BaseEnvironment):
    def reset(self) -> str:
        return "Say something"

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.step_count += 1
        return "Go on", 0.0, self.step_count == TURNS, {}


async def talk(task: dict[str, Any], model: Any) -> float:
    """The same conversation as an agent, with a client that costs little."""
    import aiohttp

    messages: list[Any] = [{"role": "user", "content": "Say something"}]
    async with aiohttp.ClientSession() as client:
        for _ in range(TURNS):
            async with client.post(f"{model.url}/chat/completions", json={"messages": messages}) as response:
                message = (await response.json())["choices"][0]["message"]
            messages += [message, {"role": "user", "content": "Go on"}]
    return 0.0


def misses(milliseconds: float, slope: float) -> list[str]:
    """What misses its threshold."""
    found = [f"{milliseconds:.2f} ms a turn > {MOST_MILLISECONDS}"] if milliseconds > MOST_MILLISECONDS else []
    return [*found, f"slope {slope:.2f} > {MOST_SLOPE}"] if slope > MOST_SLOPE else found


async def cost(target: Any, chat: Chat, episodes: int) -> float:
    """CPU milliseconds of this process for each turn, with all episodes at once."""
    config = EnvironmentConfig(isolation="process", isolation_workers=1, max_steps=TURNS + 1)
    spec = EnvironmentSpec.of(target, config)

    async def play(number: int) -> None:
        engine = ScriptedEngine(lambda turn, prompt: "All right", chat)
        sampling, limits = Sampling(), Limits(turns=TURNS)
        start = EpisodeStart(f"{target.__name__}-{number}")
        trajectory = await run_episode(
            start, environment=spec, engine=engine, chat=chat, limits=limits, sampling=sampling
        )
        assert (trajectory.error, trajectory.num_turns) == ("", TURNS)

    await play(-1)  # the worker and the server start
    began = time.process_time()
    await asyncio.gather(*map(play, range(episodes)))
    return 1000 * (time.process_time() - began) / episodes / TURNS


def conversation_seconds(chat: Chat, turns: int, text: str) -> tuple[int, float]:
    """Tokens of a conversation, and the CPU time of reading its requests and making their prompts."""
    import orjson

    dialect, forest, known = ChatCompletions(), Forest(chat, FunctionCallingParser()), KnownMessages()
    messages: list[dict[str, str]] = []
    ids, spent, length = [*chat.encode("All right"), chat.close_id], 0.0, 0
    for _ in range(turns):
        messages.append({"role": "user", "content": text})
        body = orjson.dumps({"messages": messages})
        began = time.process_time()
        prompt = forest.prompt(request := dialect.read(body, known))
        reply = type(request.messages[0])("assistant", chat.text(ids))
        forest.add(prompt, Generation(ids, [0.0] * len(ids)), reply)
        spent += time.process_time() - began
        messages.append({"role": "assistant", "content": reply.content})
        length = len(prompt.ids)
    return length, spent


def slope_of(points: list[tuple[int, float]]) -> float:
    """The slope of the line through the points on a log-log scale."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    chat = Chat(AutoTokenizer.from_pretrained(resolve("smollm2")))
    episodes = 32 if quick else 512
    environment = min(asyncio.run(cost(Echo, chat, episodes)) for _ in range(3))
    agent = min(asyncio.run(cost(talk, chat, episodes)) for _ in range(3))
    print(f"{episodes} at once, CPU a turn: environment {environment:.3f} ms, agent {agent:.3f} ms")
    text = "The quick brown fox jumps over the lazy dog. " * 48  # about 500 tokens
    points: list[tuple[int, float]] = []
    for turns in (6, 25, 100) if quick else (6, 12, 25, 50, 100, 200):
        tokens, seconds = min(conversation_seconds(chat, turns, text) for _ in range(3))
        points.append((tokens, seconds))
        print(f"{tokens:7d} tokens in {turns:3d} turns: {1e6 * seconds / tokens:.2f} us a token")
    slope = slope_of(points)
    print(f"slope {slope:.3f}")
    missed = misses(agent - environment, slope)
    print("\n".join(missed) or "ok")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
