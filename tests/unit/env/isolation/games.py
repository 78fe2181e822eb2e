"""Environments that tests send to worker processes; loads little, because every worker imports it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from turnsmith import BaseEnvironment, ToolError, current_episode, tool
from turnsmith.tools.definition import ToolDefinition
from turnsmith.trajectory import Trajectory


class Shown(BaseEnvironment):
    """Opens with messages, as served models take them."""

    def reset(self) -> Any:
        shown = [("system", "Answer with a number."), ("user", "1 + 1?"), ("assistant", "2"), ("user", "2 + 3?")]
        return [{"role": role, "content": content} for role, content in shown]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self.last_observation, float(action == "5"), True, {}


class Counter(BaseEnvironment):
    """Counts, in every way an environment can be asked to."""

    def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        self.total = seed
        return f"start {seed} {task}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.total += 1
        return f"{action} {self.total}", self.total / 2, action == "stop", {"total": self.total, "process": os.getpid()}

    def get_prompt_prefix(self) -> str:
        return f"You count to {self.config.get('goal', 10)}."

    @tool
    def add(self, amount: int, note: str = "") -> dict[str, Any]:
        """Add a number.

        Args:
            amount: How much.
        """
        if amount < 0:
            raise ToolError("It only goes up.")
        if amount == 13:
            raise KeyError("thirteen")
        self.total += amount
        self.done = self.total >= 100
        return {"total": self.total, "episode": current_episode()}

    @tool
    async def wait(self) -> str:
        """Wait a moment."""
        await asyncio.sleep(0)
        return "x" * 10_000


class Caller(BaseEnvironment):
    """Has a tool whose call is a step."""

    def reset(self) -> str:
        self.step_tools = [ToolDefinition("ring", "Ring.", {"type": "object", "properties": {"bell": {}}})]
        return "Ring a bell."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if "cracked" in action:
            raise OSError("no sound")
        return action, 0.5, True, {"rang": True}


class AsyncCounter(BaseEnvironment):
    """The same with async methods."""

    async def reset(self, seed: int = 0) -> str:
        await asyncio.sleep(0)
        self.total = seed
        return f"start {seed}"

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        await asyncio.sleep(0)
        self.total += 1
        if action == "raise":
            raise ValueError("bad")
        return f"{action} {self.total}", 1.0, False, {}


class Wrapped(BaseEnvironment):
    """A plain method that returns something to await."""

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> Any:
        async def later() -> tuple[str, float, bool, dict[str, Any]]:
            return f"later {action}", 1.0, True, {}

        return later()


class Loaded(BaseEnvironment):
    """Says what its process has imported."""

    def reset(self) -> str:
        heavy = ("torch", "ray", "verl", "vllm", "numpy", "pydantic", "transformers")
        return " ".join(name for name in heavy if name in sys.modules)

    def step(self, action: str) -> Any:
        raise NotImplementedError


def twice_the_total(trajectory: Any, environment: Any) -> float:
    """A reward that needs the object itself."""
    trajectory.reward_shares = {"total": float(environment.total)}
    return 2.0 * environment.total + len(trajectory.actions)


class Forker(BaseEnvironment):
    """Harms the process that it runs in."""

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return str(getattr(self, action)()), 0.0, False, {}

    def daemon(self) -> int:
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            child = os.fork()
            if child == 0:
                time.sleep(60)
            os.write(writer, str(child).encode())
            os._exit(0)
        return int(os.read(reader, 20))

    def exit(self) -> None:
        os._exit(3)

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def leak(self) -> None:
        kept = []
        while True:
            kept.append(bytearray(b"x" * 2**24))
            time.sleep(0.01)

    def bomb(self) -> None:
        for _ in range(12):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        time.sleep(60)


class Sleeper(BaseEnvironment):
    """Sleeps for as long as it is told."""

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        time.sleep(float(action))
        return "awake", 0.0, False, {}


def row_of_task(trajectory: Trajectory) -> float:
    assert trajectory.task is not None
    return float(trajectory.task["row"])
