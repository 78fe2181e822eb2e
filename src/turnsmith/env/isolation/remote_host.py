"""The face of an environment in a worker: a host like any other, and tools like any others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.codec import pack_trajectory
from turnsmith.env.isolation.connection import Connection
from turnsmith.env.isolation.pool import WorkerPool, pool_for
from turnsmith.env.isolation.remote_environment import RemoteEnvironment
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.result import StepResult
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, ToolError
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.execution import ToolTimeout, current_episode
from turnsmith.tools.schema import Signature
from turnsmith.tools.tool import Tool
from turnsmith.trajectory import Trajectory


class RemoteHost:
    """One environment in a worker process, built there when the episode resets.

    What the environment does wrong comes out as an `EnvironmentFailure`: as `EnvironmentTimeout` if a call takes too
    long, and as `WorkerLost` if its worker is gone, for whatever reason.

    Example:
        >>> from turnsmith.config import EnvironmentConfig
        >>> from turnsmith.env.examples.guess_number import GuessNumber
        >>> async def play():
        ...     config = EnvironmentConfig(isolation="process", isolation_workers=1)
        ...     host = RemoteHost(EnvironmentSpec.of(GuessNumber, config))
        ...     await host.reset(seed=1)
        ...     result = await host.step("no idea")
        ...     await host.close()
        ...     return result
        >>> asyncio.run(play()).observation
        'Answer with a number from 1 to 16.'
    """

    __slots__ = ("_is_busy", "_link", "_number", "_pool", "_prefix", "_spec", "environment")

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._pool: WorkerPool | None = None
        self._link: Connection | None = None
        self._number = 0
        self._prefix = ""
        self._is_busy = False
        self.environment: RemoteEnvironment | None = None
        """What stands for the user's object; None before `reset`."""

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Find a place for the environment, build it there and start its episode; returns the first observation."""
        spec = self._spec
        self._pool = pool = pool_for(Isolation.of(spec.config, spec.isolation))
        definition = pool.definition(spec)
        self._link, self._number = await pool.place((definition.number, seed))
        self._link.call_seconds = max(self._link.call_seconds, spec.call_seconds)
        self._link.teach(definition)
        request = m.Reset(self._link.next_call(), self._number, definition.number, seed, task)
        opened = await self._call(request, m.ResetReply)
        self._prefix = opened.prefix
        tools: list[Tool] = [RemoteTool(self, offered) for offered in self._read(m.read_tools, opened.tools)]
        self.environment = RemoteEnvironment(spec.name, self, tools)
        return opened.observation

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        return self._prefix

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        stepped = await self._call(m.Step(self._call_number(), self._number, action), m.StepReply)
        info = self._read(m.read_dict, stepped.info)
        return StepResult(stepped.observation, stepped.reward, stepped.terminated, stepped.truncated, info)

    async def is_over(self) -> bool:
        """Whether the environment says that its task is over, without a step; a tool call may have ended it."""
        return (await self._call(m.IsOver(self._call_number(), self._number), m.BoolReply)).yes

    async def use(self, name: str, arguments: dict[str, Any]) -> m.ToolReply:
        """Call one of the environment's tools."""
        try:
            sent = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvironmentFailure(f"The arguments of {name} have no JSON form: {error}") from error
        told = await self._call(
            m.UseTool(self._call_number(), self._number, name, sent, current_episode()), m.ToolReply
        )
        if told.is_stuck and self._link is not None:
            # The episode goes on, and so do the others of this worker; but no further ones begin in it.
            self._link.drain()
        return told

    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any:
        """Call a reward function where the environment is; returns what it pays."""
        if self._pool is None or self._link is None:
            raise EnvironmentFailure(f"{self._spec.name}: a reward was asked for before reset.")
        definition = self._pool.definition(function)
        self._link.teach(definition)
        packed = pack_trajectory(trajectory)
        request = m.Score(self._link.next_call(), self._number, definition.number, packed, seconds)
        scored = await self._call(request, m.ScoreReply)
        trajectory.reward_shares = scored.shares
        return scored.paid

    async def close(self) -> None:
        """Close the environment and give its place free. Never raises."""
        link, pool, self._link = self._link, self._pool, None
        if link is None or pool is None:
            return
        closing = asyncio.get_running_loop().create_task(self._close(link, pool))
        pool.closing.add(closing)
        closing.add_done_callback(pool.closing.discard)
        # A call that was cut short may go on for long; its place is given free when it ends, and nobody waits for it.
        if not self._is_busy:
            await asyncio.shield(closing)

    async def _close(self, link: Connection, pool: WorkerPool) -> None:
        is_stuck = False
        try:
            async with asyncio.timeout(self._spec.call_seconds + 1.0):
                answer = await link.call(m.Close(link.next_call(), self._number))
                is_stuck = not (isinstance(answer, m.BoolReply) and answer.yes)
        except TimeoutError:
            is_stuck = True
        except EnvironmentFailure:  # it is gone already, with its worker
            pass
        finally:
            pool.release(link, self._number, is_stuck=is_stuck)

    def _call_number(self) -> int:
        if self._link is None:
            raise EnvironmentFailure(f"{self._spec.name}: step was called before reset.")
        return self._link.next_call()

    async def _call(self, request: Any, expected: type[Any]) -> Any:
        link = self._link
        if link is None:
            raise EnvironmentFailure(f"{self._spec.name}: it was used before reset, or after its end.")
        self._is_busy = True
        reply = await link.call(request)
        self._is_busy = False
        if isinstance(reply, expected):
            return reply
        if not isinstance(reply, m.ErrorReply):
            raise EnvironmentFailure(f"{self._spec.name}: its worker answered something else than it was asked.")
        if not reply.is_late:
            raise EnvironmentFailure(reply.sentence)
        if reply.is_stuck and self._pool is not None:
            # Its worker gets no further environments and is killed after those that it has.
            self._pool.release(link, self._number, is_stuck=True)
            self._link = None
        raise EnvironmentTimeout(reply.sentence)

    def _read(self, read: Any, packed: Any) -> Any:
        """Unpack the user's own data, if it is not too much."""
        if len(bytes(packed)) > m.MOST_FREE:
            raise EnvironmentFailure(f"{self._spec.name}: its worker sent more than {m.MOST_FREE:,} bytes of data.")
        try:
            return read(packed)
        except m.BadMessage as error:
            raise EnvironmentFailure(f"{self._spec.name}: its worker sent data that cannot be read: {error}") from error


class RemoteTool(Tool):
    """A `@tool` method of an environment in a worker. Arguments are checked there, where their types are known."""

    def __init__(self, host: RemoteHost, offered: m.ToolInfo) -> None:
        super().__init__(ToolDefinition(offered.name, offered.description, offered.parameters))
        self.time_limit = offered.time_limit
        self.max_output_tokens = offered.max_output_tokens
        self._host = host

    @property
    def signature(self) -> Signature:
        """What it takes; anything goes here."""
        definition = self.definition
        return Signature(definition.description, definition.parameters, lambda arguments: arguments, is_open=True)

    async def execute(self, **arguments: Any) -> str:
        """Call the method where its environment is."""
        told = await self._host.use(self.definition.name, arguments)
        if told.ok:
            return told.text
        if told.is_late:
            raise ToolTimeout
        if told.failure:
            raise EnvironmentFailure(told.failure)
        raise ToolError(told.text)
