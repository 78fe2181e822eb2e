"""Environments that ask other players, in every way that they can; imported by worker processes too."""

from __future__ import annotations

from typing import Any

from turnsmith import BaseEnvironment, tool


class Shop(BaseEnvironment):
    """The model serves a customer, whom another player plays."""

    def reset(self, seed: int = 0) -> str:
        self.told = [{"role": "system", "content": f"You are customer {seed} and want tea."}]
        return self._customer("The shop is open.")

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        answer = self._customer(action)
        return answer, float("thanks" in answer), "thanks" in answer, {}

    @tool
    def look(self) -> str:
        """Look at the customer."""
        return self.ask("mirror", "How do you look?")

    def _customer(self, said: str) -> str:
        self.told.append({"role": "user", "content": said})
        answer = self.ask("customer", self.told)
        self.told.append({"role": "assistant", "content": answer})
        return answer


class AsyncShop(BaseEnvironment):
    """The same with async methods."""

    async def reset(self) -> str:
        return await self.ask_async("customer", "The shop is open.")

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return await self.ask_async("customer", action), 1.0, True, {}


class Blocking(AsyncShop):
    """Blocks the event loop, which is refused."""

    async def reset(self) -> str:
        return self.ask("customer", "The shop is open.")


def customer(messages: list[dict[str, str]]) -> str:
    """Wants tea, and knows what it said before."""
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    if "tea" in messages[-1]["content"]:
        return f"thanks, I asked {len(said)} times"
    return f"Tea, please ({len(said) + 1})."


async def slow_customer(messages: list[dict[str, str]]) -> str:
    """Takes longer than its environment may."""
    import asyncio

    await asyncio.sleep(1.5)
    return "thanks"


def random_customer(messages: list[dict[str, str]], seed: int) -> str:
    """Draws what it says."""
    import random

    return f"I want {random.Random(seed).randint(1, 10**6)} cups."


def broken_customer(messages: list[dict[str, str]]) -> str:
    """Fails."""
    raise KeyError("purse")


def mute_customer(messages: list[dict[str, str]]) -> None:
    """Says nothing."""
