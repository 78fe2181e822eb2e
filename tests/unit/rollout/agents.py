"""Agents for the tests, written as a user writes them: with the vendors' own clients."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import openai  # here, because the import alone takes longer than some of the tests allow their agents

LOOK = {
    "name": "look",
    "description": "Look at something.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}
TURNS = 4


async def chat_agent(task: dict[str, Any], model: Any) -> float:
    """Chat completions, streamed or not, with tools, until the model calls none."""
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
        messages: list[Any] = [
            {"role": "system", "content": "Look around."},
            {"role": "user", "content": task["question"]},
        ]
        for _ in range(TURNS):
            asked: dict[str, Any] = {"model": "m", "messages": messages, "max_completion_tokens": 200}
            asked["tools"] = [{"type": "function", "function": LOOK}]
            if task.get("stream"):
                async with client.chat.completions.stream(**asked) as stream:
                    async for _event in stream:
                        pass
                    message = stream.current_completion_snapshot.choices[0].message
            else:
                message = (await client.chat.completions.create(**asked)).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                seen = f"a {json.loads(call.function.arguments)['at']}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
            if not message.tool_calls:
                messages.append({"role": "user", "content": "Go on."})
        return float(str(messages).count("a door"))


def responses_agent(task: dict[str, Any], model: Any) -> float:
    """Responses, with a plain client, which blocks its thread."""
    with openai.OpenAI(base_url=model.url, api_key=model.key) as client:
        return look_around(task, client)


def returning_agent(task: dict[str, Any], model: Any) -> Any:
    """Asks once, and returns what the task says."""
    with openai.OpenAI(base_url=model.url, api_key=model.key) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": task["question"]}])
    return task["returned"]


def look_around(task: dict[str, Any], client: Any) -> float:
    items: list[Any] = [{"role": "user", "content": task["question"]}]
    calls = 0
    for _ in range(TURNS):
        asked: dict[str, Any] = {"model": "m", "input": items, "max_output_tokens": 200}
        asked |= {"instructions": "Look around.", "tools": [{"type": "function", **LOOK}]}
        if task.get("stream"):
            for event in client.responses.create(**asked, stream=True):
                if event.type in ("response.completed", "response.incomplete"):
                    output = event.response.output
        else:
            output = client.responses.create(**asked).output
        items += [item.model_dump(exclude_none=True) for item in output]
        uses = [item for item in output if item.type == "function_call"]
        calls += len(uses)
        items += [{"type": "function_call_output", "call_id": use.call_id, "output": "a door"} for use in uses]
        if not uses:
            items.append({"role": "user", "content": "Go on."})
    return float(calls)


async def anthropic_agent(task: dict[str, Any], model: Any) -> float:
    """Anthropic's messages."""
    from anthropic import AsyncAnthropic

    tool: Any = {"name": "look", "description": LOOK["description"], "input_schema": LOOK["parameters"]}
    calls = 0
    async with AsyncAnthropic(base_url=model.anthropic_url, api_key=model.key) as client:
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        for _ in range(TURNS):
            asked: dict[str, Any] = {"model": "m", "messages": messages, "max_tokens": 200, "tools": [tool]}
            count = await client.messages.count_tokens(model="m", messages=messages, tools=[tool])
            if task.get("stream"):
                async with client.messages.stream(**asked) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(**asked)
            assert message.usage.input_tokens == count.input_tokens
            messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
            uses = [block for block in message.content if block.type == "tool_use"]
            calls += len(uses)
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": "a door"} for use in uses]
            messages.append({"role": "user", "content": results or "Go on."})
    return float(calls)


async def plain_agent(task: dict[str, Any], model: Any) -> float:
    """Three turns, without tools and without a task."""
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
        messages: list[Any] = [{"role": "user", "content": "Say a"}]
        for _ in range(3):
            reply = await client.chat.completions.create(model="m", messages=messages)
            messages += [reply.choices[0].message, {"role": "user", "content": "Once more"}]
    return float(len(messages))


async def parallel_agent(task: dict[str, Any], model: Any) -> float:
    """A subagent for each of three questions, all at once, and a summary of what they said."""
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key) as client:

        async def ask(*texts: str) -> str:
            messages: list[Any] = [
                {"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(texts)
            ]
            reply = await client.chat.completions.create(model="m", messages=messages)
            return reply.choices[0].message.content or ""

        async def talk(question: str) -> str:
            first = await ask(question)
            return await ask(question, first, "Really?")

        answers = await asyncio.gather(*(talk(f"{task.get('question', 'What?')} {number}") for number in range(3)))
        await ask(" ".join(answers))
        return 1.0


def rewarding_agent(task: dict[str, Any], model: Any) -> None:
    """Rewards its turns one by one, and returns nothing."""
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    with openai.OpenAI(base_url=model.url, api_key=model.key) as client:
        for number in range(3):
            reply = client.chat.completions.create(model="m", messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": "So"})
            model.reward(number + 0.5)
    model.reward(10.0, turn=0)


def failing_agent(task: dict[str, Any], model: Any) -> float:
    chat_once(model)
    raise KeyError("sword")


def silent_agent(task: dict[str, Any], model: Any) -> None:
    chat_once(model)


def crashing_agent(task: dict[str, Any], model: Any) -> float:
    chat_once(model)
    os._exit(3)


def endless_agent(task: dict[str, Any], model: Any) -> float:
    with openai.OpenAI(base_url=model.url, api_key=model.key, max_retries=0) as client:
        while True:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])


async def sleeping_agent(task: dict[str, Any], model: Any) -> float:
    await asyncio.sleep(60)
    return 1.0


async def stalling_agent(task: dict[str, Any], model: Any) -> float:
    """Takes one turn, and then hangs."""
    async with openai.AsyncOpenAI(base_url=model.url, api_key=model.key, max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    return await sleeping_agent(task, model)


def chat_once(model: Any) -> str:
    with openai.OpenAI(base_url=model.url, api_key=model.key, max_retries=0) as client:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    return reply.choices[0].message.content or ""
