"""An OpenEnv server with the real package: `python openenv_server.py PORT KIND SESSIONS`. Runs in an environment of its
own, and prints a line when it listens."""

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
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


if __name__ == "__main__":
    port, kind, sessions = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    environment, action = {"text": (Guess, Say), "length": (Length, Say), "json": (Roulette, Bet)}[kind]
    app = create_fastapi_app(environment, action, Seen, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
