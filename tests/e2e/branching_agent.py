"""An agent that asks two subagents at once, sums up what was said, and goes on from the summary alone."""

from __future__ import annotations

import asyncio
from typing import Any

import openai


async def branch(task: dict[str, Any], model: Any) -> None:
    """Seven turns in four conversations, each paid for by the share of the letter a."""
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:

        async def say(messages: list[Any], text: str) -> str:
            messages.append({"role": "user", "content": text})
            reply = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message.content
            messages.append({"role": "assistant", "content": reply or ""})
            return reply or ""

        async def talk(name: str) -> str:
            messages = [{"role": "system", "content": f"You are {name}."}]
            return await say(messages, "Say a") + await say(messages, "Once more")

        said = list(await asyncio.gather(talk("Ann"), talk("Bob")))
        main = [{"role": "system", "content": "Sum up."}]
        said.append(await say(main, "Sum up"))
        said.append(await say([*main[:1]], f"Before: {said[-1]}. Say a"))  # the summary in place of the conversation
        said.append(await say(main, "And now?"))
        text = "".join(said)
        await asyncio.to_thread(model.reward, text.count("a") / max(1, len(text)))
        await asyncio.to_thread(model.reward, said[0].count("a") / 8, turn=0)


async def branch_unevenly(task: dict[str, Any], model: Any) -> None:
    """Up to nine conversations of one turn: how many, the first answer decides."""
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:

        async def say(text: str) -> str:
            asked: Any = [{"role": "user", "content": text}]
            return (await client.chat.completions.create(model="m", messages=asked)).choices[0].message.content or ""

        said = await say("Say a")
        said += "".join([await say(f"Say a, number {number}") for number in range(sum(map(ord, said)) % 9)])
        await asyncio.to_thread(model.reward, said.count("a") / max(1, len(said)))
