"""The specification's `MultiTurnManager`: where the steps of an environment run."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from turnsmith import BaseEnvironment, FunctionCallingParser, MultiTurnManager, ToolRegistry


class Plain(BaseEnvironment):
    def reset(self) -> str:
        return "Go."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "Next.", 0.0, False, {"thread": threading.get_ident()}


class Async(BaseEnvironment):
    async def reset(self) -> str:  # type: ignore[override]
        return "Go."

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        return "Next.", 0.0, False, {"thread": threading.get_ident(), "loop": id(asyncio.get_running_loop())}


class Mixed(Plain):
    """A plain `reset` and an async `step` that goes on with what the last one opened."""

    loop: asyncio.AbstractEventLoop | None = None

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        self.loop = self.loop or asyncio.get_running_loop()
        self.loop.call_soon(str)  # an error if it is closed
        return "Next.", 0.0, False, {"thread": threading.get_ident()}


@pytest.mark.parametrize("environment", [Plain, Async, Mixed])
def test_a_plain_environment_stays_in_the_callers_thread_and_an_async_one_on_one_loop(environment: Any) -> None:
    manager = MultiTurnManager(ToolRegistry(), FunctionCallingParser(), environment())
    infos = [manager.step("a").result.info for _ in range(2)]
    assert infos[0] == infos[1]
    assert (infos[0]["thread"] == threading.get_ident()) is (environment is not Async)
