"""A conversation of three questions with pydantic-ai, with a tool that may be called."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("m"), system_prompt="Look around.")


@agent.tool_plain
def look(at: str) -> str:
    """Look at something."""
    return f"a {at}"


async def main() -> None:
    history = []
    for question in ("What do you see?", "And then?", "And at last?"):
        async with agent.run_stream(question, message_history=history) as result:
            await result.get_output()
        history = result.all_messages()


asyncio.run(main())
