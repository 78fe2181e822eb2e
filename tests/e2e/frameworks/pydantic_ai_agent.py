"""pydantic-ai, streamed; in its graph, because `run_stream` ends at the first text of the model."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("m"), system_prompt="Look around.")


@agent.tool_plain
def look(at: str) -> str:
    """Look at something."""
    return f"a {at}"


async def main() -> None:
    async with agent.iter("What do you see?") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _event in stream:
                        pass


asyncio.run(main())
