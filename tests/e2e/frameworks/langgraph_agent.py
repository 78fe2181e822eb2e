"""LangGraph's prebuilt agent, streamed token by token."""

import asyncio

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"a {at}"


async def main() -> None:
    agent = create_react_agent(ChatOpenAI(model="m", streaming=True), [look], prompt="Look around.")
    asked = {"messages": [("user", "What do you see?")]}
    async for _chunk in agent.astream(asked, stream_mode="messages"):
        pass


asyncio.run(main())
