"""A conversation of three questions with the OpenAI Agents SDK, by chat completions, with a tool that may be called."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def look(at: str) -> str:
    """Look at something."""
    return f"a {at}"


async def main() -> None:
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel("m", AsyncOpenAI())
    agent = Agent("Scout", instructions="Look around.", model=model, tools=[look])
    history = []
    for question in ("What do you see?", "And then?", "And at last?"):
        stream = Runner.run_streamed(agent, [*history, {"role": "user", "content": question}])
        async for _event in stream.stream_events():
            pass
        history = stream.to_input_list()


asyncio.run(main())
