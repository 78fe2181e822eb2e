"""An OpenEnv server with the real package: `python openenv_server.py PORT KIND SESSIONS`. Runs in an environment of its
own, and prints a line when it listens."""

import random
import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    """A text is enough."""

    message: str


class Bet(Action):
    """Needs two fields."""

    number: int
    stake: float = 1.0
    colour: str


class Seen(Observation):
    """One text."""

    text: str


class Guess(Environment):
    """Say the number of this seed: 1 for the right one, which ends it; three tries."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, low: int = 1, **more: Any) -> Seen:
        self.low, self.tries = low, 0
        self.number = random.Random(seed).randint(low, low + 7)
        return Seen(text=f"Which number from {low} to {low + 7}? It is not far from {self.number}.")

    def step(self, action: Say, **more: Any) -> Seen:
        if action.message == "break":
            raise OSError("the simulator is gone")
        self.tries += 1
        is_right = action.message == str(self.number)
        return Seen(text="Right." if is_right else "No.", reward=float(is_right) if is_right else None, done=is_right)

    @property
    def state(self) -> State:
        return State()


class Length(Guess):
    """Pays for what an untrained model does as well: an even number of characters."""

    def step(self, action: Say, **more: Any) -> Seen:
        return Seen(text="Thanks.", reward=float(len(action.message) % 2 == 0), done=True)


class Roulette(Guess):
    """Wants a number and a colour."""

    def step(self, action: Bet, **more: Any) -> Seen:
        return Seen(text=f"{action.stake:g} on {action.colour}", reward=float(action.number == self.number), done=True)


class OwnCall(CallToolAction):
    """What some servers derive, and which then refuses the action that lists the tools."""


class Boxes(MCPEnvironment):
    """Acts by MCP tools alone: unlock the box of this seed (0.25) and take what is in it (0.75), which ends it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("boxes")

        @tools.tool
        def unlock(box: int) -> str:
            """Unlock a box."""
            self.unlocked.add(box)
            return f"Box {box} is open."

        @tools.tool
        def take(box: int, hand: str = "left") -> dict[str, Any]:
            """Take what is in a box."""
            if box not in self.unlocked:
                raise ValueError(f"box {box} is locked")
            return {"taken": box == self.number, "hand": hand}

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        self.number, self.unlocked = random.Random(seed).randint(1, 8), set[int]()
        return Observation(metadata={"task": f"Take what is in a box. It is not far from {self.number}."})

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        seen = await super().step_async(action, timeout_s, **more)
        if isinstance(action, CallToolAction) and seen.error is None:
            if action.arguments["box"] == 0:
                raise OSError("the simulator is gone")
            is_right, seen.done = action.arguments["box"] == self.number, action.tool_name == "take"
            seen.reward = (0.75 if seen.done else 0.25) * is_right
            seen.metadata = {"success": is_right and seen.done}
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        raise TypeError("this environment only has tools")

    @property
    def state(self) -> State:
        return State()


KINDS = {
    "text": (Guess, Say, Seen),
    "length": (Length, Say, Seen),
    "json": (Roulette, Bet, Seen),
    "tools": (Boxes, CallToolAction, CallToolObservation),
    "own tools": (Boxes, OwnCall, CallToolObservation),
    "any action": (Boxes, Action, Observation),
}

if __name__ == "__main__":
    port, kind, sessions = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    app = create_fastapi_app(*KINDS[kind], max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
