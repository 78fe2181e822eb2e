"""Agents that bring their own loop: a function or a program that talks to the model by URL.

To an episode an agent is an environment with one step, which runs it. So agents run where environments run, in threads
or in worker processes, and what goes wrong in them is handled alike.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import signal
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from turnsmith.env.result import StepResult
from turnsmith.errors import EnvironmentFailure

AGENT_SECONDS = 14_400.0
"""Timeout of an agent's call; its episode ends by `inference.max_seconds`, which does not count the model's time."""
NO_REWARD = "no_reward"
"""In the step's info: the agent returned nothing."""
_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """The model of one episode, as an agent sees it.

    Example:
        >>> model = ModelEndpoint("http://127.0.0.1:4000/e/secret/v1", "secret")
        >>> model.anthropic_url
        'http://127.0.0.1:4000/e/secret'
        >>> sorted(model.variables())[:2]
        ['ANTHROPIC_API_KEY', 'ANTHROPIC_BASE_URL']
    """

    url: str
    """`base_url` of OpenAI's clients, and of those that speak its API."""
    key: str
    """Any API key that a client asks for."""
    seed: int = 0
    """The seed of the episode's start."""

    @property
    def anthropic_url(self) -> str:
        """`base_url` of Anthropic's client."""
        return self.url.removesuffix("/v1")

    def reward(self, value: float, turn: int | None = None) -> None:
        """Add a reward to a turn of the model: the last one, or the one with this number, counted from 0."""
        body = json.dumps({"value": value, "turn": turn}).encode()
        request = urllib.request.Request(f"{self.url}/reward", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60):
            pass

    def variables(self) -> dict[str, str]:
        """The environment variables by which programs find the model."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.key,
            "TURNSMITH_REWARD_URL": f"{self.url}/reward",
        }


class AgentEnvironment:
    """Runs an agent in its one step; the action says where the model is."""

    agent: ClassVar[Callable[..., Any] | None] = None

    def reset(self, seed: int = 0, task: Mapping[str, Any] | None = None) -> str:
        """Keep the task for the agent."""
        self.seed, self.task = seed, dict(task or {})
        return ""

    def step(self, action: str) -> Any:
        """Run the agent to its end."""
        # Not async itself: what an async agent does then runs in a thread of its own, where it may block.
        returned = self.run(ModelEndpoint(**json.loads(action), seed=self.seed))
        return _finish(returned) if inspect.isawaitable(returned) else _result(returned)

    def run(self, model: ModelEndpoint) -> Any:
        """Call the agent."""
        assert self.agent is not None
        return type(self).agent(self.task, model)  # pyright: ignore[reportOptionalCall]


async def _finish(returned: Any) -> StepResult:
    return _result(await returned)


def _result(returned: Any) -> StepResult:
    if returned is None:
        return StepResult("", terminated=True, info={NO_REWARD: True})
    return StepResult("", reward=returned, terminated=True)


@lru_cache(maxsize=256)
def agent_environment(function: Callable[..., Any]) -> type[AgentEnvironment]:
    """The environment class that runs an agent function, `function(task, model)`, which may be async.

    Example:
        >>> environment = agent_environment(lambda task, model: float(task["answer"] == 4))()
        >>> environment.reset(task={"answer": 4})
        ''
        >>> environment.step('{"url": "http://127.0.0.1:4000/e/secret/v1", "key": "secret"}').reward
        1.0
    """
    name = getattr(function, "__name__", type(function).__name__)
    body = {"agent": staticmethod(function), "__module__": getattr(function, "__module__", __name__)}
    return type(name, (AgentEnvironment,), body)


class CommandAgent(AgentEnvironment):
    """Runs a program as the agent, with the model and the task in its environment variables.

    The program gives its reward to `TURNSMITH_REWARD_URL` in a POST request, as a number or as
    `{"value": 1.0, "turn": 0}`; the task is in `TURNSMITH_TASK`, as JSON.

    Args:
        command: The program and its arguments, as in a shell.
        folder: The folder to run it in; empty: that of this process.

    Example:
        >>> CommandAgent("python my_agent.py --fast").command
        ['python', 'my_agent.py', '--fast']
    """

    def __init__(self, command: str, folder: str = "") -> None:
        self.folder = folder or None
        self.command = shlex.split(command)
        if not self.command:
            raise EnvironmentFailure("The agent's command is empty.")

    async def run(self, model: ModelEndpoint) -> None:
        """Run the program to its end; kill it, with all that it has started, if the episode ends first."""
        variables = {**os.environ, **model.variables(), "TURNSMITH_TASK": json.dumps(self.task)}
        process = await asyncio.create_subprocess_exec(
            *self.command,
            env={**variables, "TURNSMITH_SEED": str(self.seed)},
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, errors = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            last = errors.decode("utf-8", "replace").strip()[-_MAX_ERROR_CHARS:]
            raise EnvironmentFailure(f"The agent ended with exit status {process.returncode}: {last}")
