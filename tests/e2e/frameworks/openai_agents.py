"""The OpenAI Agents SDK, with Responses and with chat completions, streamed."""

import asyncio
import sys

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def look(at: str) -> str:
    """Look at something."""
    return f"a {at}"


async def main() -> None:
    set_tracing_disabled(True)
    kind = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}[sys.argv[1]]
    agent = Agent("Scout", instructions="Look around.", model=kind("m", AsyncOpenAI()), tools=[look])
    stream = Runner.run_streamed(agent, "What do you see?")
    async for _event in stream.stream_events():
        pass
    print(stream.final_output, file=sys.stderr)


asyncio.run(main())
