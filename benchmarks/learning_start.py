"""The model that both sides of the learning comparison start from: SmolLM2 after a few steps on scripted episodes.

As it comes, SmolLM2-135M writes the right call to the calculator with a probability of about e^-40: every reward is 0
and there is nothing to learn from, in any framework. Here it sees scripted episodes that know the format, but only a
share of them the right sum, so that it starts with about that success and has to find out by reward which sum is right.

    python -m benchmarks.learning_start --out start
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.word_problems import WordProblems
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith import Chat, ScriptedEngine
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Sampling
from turnsmith.inference.models import resolve
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits

FIRST_SEED = 2_000_000
"""Neither trained on nor evaluated later."""
STEPS, BATCH = 12, 4
WRONG = ("{a} + {b} - {c}", "{a} * {b} + {c}", "{a} * {c} - {b}", "({a} - {c}) * {b}", "{a} * {b}")


def drawn_sum(numbers: Sequence[int], draw: random.Random, share: float) -> str:
    """The right sum of a problem's three numbers with this probability, else a wrong one."""
    a, b, c = numbers
    form = "{a} * {b} - {c}" if draw.random() < share else draw.choice(WRONG)
    return form.format(a=a, b=b, c=c)


def call_of(name: str, **arguments: object) -> str:
    """How the model calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def calculation(expression: str) -> list[str]:
    """What the model says in an episode that calculates this and answers."""
    result = WordProblems().calculate(expression=expression)
    return [call_of("calculate", expression=expression), f"The answer is {result}."]


async def scripted(chat: Chat, environment: Any, start: EpisodeStart, said: list[str]) -> tuple[list[int], list[int]]:
    """The tokens of an episode in which the model says this, and 1 for those that are the model's."""
    trajectory = await run_episode(
        start,
        environment=EnvironmentSpec.of(environment),
        engine=ScriptedEngine(said, chat),
        chat=chat,
        limits=Limits(prompt_tokens=1024, tokens=1024),
        sampling=Sampling(),
    )
    assert len(trajectory.actions) == len(said), trajectory.error
    return list(trajectory.tokens.ids), list(trajectory.tokens.mask)


def demonstration(chat: Chat, seed: int, share: float) -> tuple[list[int], list[int]]:
    """A scripted episode of a word problem."""
    problem = WordProblems()
    problem.reset(seed=seed)
    expression = drawn_sum(problem.numbers, random.Random(seed), share)
    return asyncio.run(scripted(chat, WordProblems, EpisodeStart(str(seed), seed=seed), calculation(expression)))


def fine_tune(batches: Iterable[list[tuple[list[int], list[int]]]], out: Path, learning_rate: float) -> None:
    """Fine-tune SmolLM2, one step for each batch of tokens and marks of what is to be said, and save it in a folder."""
    folder = resolve("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    began = time.perf_counter()
    for step, rows in enumerate(batches, 1):
        longest = max(len(ids) for ids, _ in rows)
        ids, said = (torch.tensor([row[part] + [0] * (longest - len(row[part])) for row in rows]) for part in (0, 1))
        attended = torch.tensor([[1] * len(row[0]) + [0] * (longest - len(row[0])) for row in rows])
        loss = model(ids, attention_mask=attended, labels=ids.masked_fill(said == 0, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f} after {time.perf_counter() - began:.0f} s", flush=True)
    made = out.with_name(f"{out.name}.part")  # a folder with the right name is a whole one
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
    made.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the new model")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--share", type=float, default=0.2, help="of the episodes that do the right sum")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    options = parser.parse_args()
    chat = Chat(AutoTokenizer.from_pretrained(resolve("smollm2")))
    firsts = range(FIRST_SEED, FIRST_SEED + options.steps * options.batch, options.batch)
    batches = ([demonstration(chat, first + n, options.share) for n in range(options.batch)] for first in firsts)
    fine_tune(batches, options.out, options.learning_rate)


if __name__ == "__main__":
    main()
