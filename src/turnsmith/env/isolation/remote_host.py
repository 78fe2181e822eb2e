"""An environment and its tools in a worker process, with the same interface as in this process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Protocol

from turnsmith.concurrency.clocks import OutOfTime, waiting
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.connection import ANSWER_SECONDS, Connection
from turnsmith.env.isolation.pool import WorkerPool, pool_for
from turnsmith.env.isolation.serialization import pack_trajectory
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.opening import Speaker
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, InternalError, Overloaded, ToolError
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.execution import ToolTimeout, current_episode
from turnsmith.tools.schema import Signature
from turnsmith.tools.step_result import StepResult, read_reward
from turnsmith.tools.step_tool import StepTool
from turnsmith.tools.tool import Tool
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    from turnsmith.trajectory import Trajectory


class _Scorer(Protocol):
    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any: ...


class RemoteEnvironment:
    """The `environment` of a `RemoteHost`: only reward functions can be called with it.

    Example:
        >>> RemoteEnvironment("Game", None).board
        Traceback (most recent call last):
        AttributeError: Game runs in another process, so its 'board' cannot be read here; with \
environment.isolation=thread it can.
    """

    def __init__(self, name: str, host: _Scorer | None) -> None:
        self._name = name
        self._host = host

    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any:
        """Call `function(trajectory, environment)` in the worker; returns what it returned."""
        if self._host is None:
            raise EnvironmentFailure("there is no worker")
        return await self._host.score(function, trajectory, seconds)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._name} runs in another process, so its {name!r} cannot be read here; with "
            "environment.isolation=thread it can."
        )


class RemoteHost:
    """One environment in a worker process, built there when the episode resets.

    All errors of the user's code are raised as `EnvironmentFailure`: as `EnvironmentTimeout` if a call times out, as
    `WorkerLost` if the worker is gone.

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

    __slots__ = (
        "_environment",
        "_hangs",
        "_is_busy",
        "_pool",
        "_prefix",
        "_spec",
        "_tools",
        "_worker",
        "environment",
        "examples",
        "thread",
    )

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._pool: WorkerPool | None = None
        self._worker: Connection | None = None
        self._environment = 0
        self._prefix = ""
        self._is_busy = False
        self._hangs = False
        """Whether a tool still runs in the object's thread, after its time limit."""
        self._tools: list[Tool] = []
        self.thread = None
        """The object is in another process."""
        self.environment: RemoteEnvironment | None = None
        """Represents the user's object; None before `reset`."""
        self.examples: tuple[tuple[Speaker, str], ...] = ()
        """The messages that `reset` put between the system prompt and the first observation."""

    @property
    def limit(self) -> float:
        """Timeout of one call, in seconds."""
        return self._spec.call_seconds

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment in a worker, start its episode and return the first observation."""
        spec = self._spec
        self._pool = pool = pool_for(Isolation.of(spec.config, spec.isolation))
        definition = pool.definition(spec)
        async with waiting(pool.bottleneck):
            self._worker, self._environment = worker, environment = await pool.place(definition.number, seed)
        worker.call_seconds = max(worker.call_seconds, spec.call_seconds)
        worker.define(definition)
        request = m.Reset(worker.next_call(), environment, definition.number, seed, task)
        reply = await self._call(request, m.ResetReply, 2 * spec.call_seconds)  # it may have to be imported first
        self._prefix, self.examples = reply.prefix, reply.examples
        self._tools = [self._tool(info) for info in self._unpack(m.read_tools, reply.tools)]
        self.environment = RemoteEnvironment(spec.name, self)
        return reply.observation

    def tools(self) -> list[Tool]:
        """Its `@tool` methods, which are called in the worker, and those whose calls are steps."""
        return self._tools

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        return self._prefix

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        reply = await self._call(m.Step(self._next_call(), self._environment, action), m.StepReply)
        info = self._unpack(m.read_dict, reply.info)
        reward = read_reward(f"{self._spec.name}.step", reply.reward)  # a server may not have checked it
        return StepResult(reply.observation, reward, reply.terminated, reply.truncated, info)

    async def is_over(self) -> bool:
        """Whether the environment says that its task is over, without a step; a tool call may have ended it."""
        return (await self._call(m.IsOver(self._next_call(), self._environment), m.BoolReply)).yes

    async def solve(self) -> Any:
        """What the environment's own `solve` returns; None if it has none."""
        reply = await self._call(m.Solve(self._next_call(), self._environment), m.SolveReply)
        return self._unpack(m.read_any, reply.solution)

    async def use_tool(self, name: str, arguments: dict[str, Any], seconds: float) -> m.ToolReply:
        """Call one of the environment's tools."""
        try:
            as_json = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise EnvironmentFailure(f"The arguments of {name} have no JSON form: {error}") from error
        request = m.UseTool(self._next_call(), self._environment, name, as_json, current_episode())
        reply = await self._call(request, m.ToolReply, seconds)
        if reply.is_stuck and self._worker is not None:
            # This episode and the others of the worker go on, but no new ones start in it.
            self._worker.drain()
            self._hangs = True
        return reply

    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any:
        """Call a reward function in the worker, with the user's object; returns what it returned."""
        if self._pool is None or self._worker is None:
            raise EnvironmentFailure(f"{self._spec.name}: a reward was asked for before reset.")
        definition = self._pool.definition(function)
        self._worker.define(definition)
        packed = pack_trajectory(trajectory)
        request = m.Score(self._worker.next_call(), self._environment, definition.number, packed, seconds)
        reply = await self._call(request, m.ScoreReply, 2 * seconds)  # the function may have to be imported first
        trajectory.reward_shares = reply.shares
        return reply.reward

    async def close(self) -> None:
        """Close the environment and free its place. Never raises."""
        worker, pool, self._worker = self._worker, self._pool, None
        if worker is None or pool is None:
            return
        closing = asyncio.get_running_loop().create_task(self._close(worker, pool))
        pool.closing.add(closing)
        closing.add_done_callback(pool.closing.discard)
        # A cancelled call may go on in the worker for long. The place is freed in the background when it ends.
        if not (self._is_busy or self._hangs):
            await asyncio.shield(closing)

    async def _close(self, worker: Connection, pool: WorkerPool) -> None:
        is_stuck = False
        try:
            request = m.Close(worker.next_call(), self._environment)
            reply = await worker.call(request, self._spec.call_seconds)
            is_stuck = not (isinstance(reply, m.BoolReply) and reply.yes)
        except OutOfTime:
            is_stuck = True
        except EnvironmentFailure:  # its worker is gone already
            pass
        finally:
            pool.release(worker, self._environment, is_stuck=is_stuck)

    def _tool(self, info: m.ToolInfo) -> Tool:
        definition = ToolDefinition(info.name, info.description, info.parameters)
        return StepTool(definition, self.step, limit=info.time_limit) if info.is_step else RemoteTool(self, info)

    def _next_call(self) -> int:
        if self._worker is None:
            raise EnvironmentFailure(f"{self._spec.name}: step was called before reset.")
        return self._worker.next_call()

    async def _call(self, request: Any, expected: type[Any], seconds: float | None = None) -> Any:
        worker = self._worker
        if worker is None:
            raise EnvironmentFailure(f"{self._spec.name}: it was used before reset, or after its end.")
        self._is_busy = True
        try:
            reply = await worker.call(request, seconds or self._spec.call_seconds)
        except OutOfTime:
            self._give_up(worker)
            raise EnvironmentTimeout(f"{self._spec.name}: its worker did not answer, though it is alive.") from None
        self._is_busy = False
        if isinstance(reply, expected):
            return reply
        if not isinstance(reply, m.ErrorReply):
            raise EnvironmentFailure(f"{self._spec.name}: its worker sent a reply to something else.")
        if reply.is_internal:
            raise InternalError.read(reply.sentence)
        if not reply.is_late:
            raise (Overloaded if reply.is_overload else EnvironmentFailure)(reply.sentence)
        if reply.is_stuck:
            self._give_up(worker)
        raise EnvironmentTimeout(reply.sentence)

    def _give_up(self, worker: Connection) -> None:
        """A call hangs: its worker gets no more environments, and is killed after the others."""
        if self._pool is not None:
            self._pool.release(worker, self._environment, is_stuck=True)
        self._worker = None

    def _unpack(self, read: Any, packed: Any) -> Any:
        """Unpack the user's own data, if it is not too much."""
        if len(bytes(packed)) > m.MAX_USER_DATA_BYTES:
            raise EnvironmentFailure(
                f"{self._spec.name}: its worker sent more than {m.MAX_USER_DATA_BYTES:,} bytes of data."
            )
        try:
            return read(packed)
        except m.BadMessage as error:
            raise EnvironmentFailure(f"{self._spec.name}: its worker sent data that cannot be read: {error}") from error


class RemoteTool(Tool):
    """A `@tool` method of an environment in a worker. The worker validates arguments: it knows their types."""

    def __init__(self, host: RemoteHost, info: m.ToolInfo) -> None:
        super().__init__(ToolDefinition(info.name, info.description, info.parameters))
        self.time_limit = info.time_limit
        self.grace = 2 * ANSWER_SECONDS  # the worker keeps the limit, and `Connection.call` notices if it does not
        self.max_output_tokens = info.max_output_tokens
        self._host = host

    @property
    def signature(self) -> Signature:
        """Accepts anything on this side."""
        definition = self.definition
        return Signature(definition.description, definition.parameters, lambda arguments: arguments, is_open=True)

    async def execute(self, **arguments: Any) -> str:
        """Call the method in the worker."""
        reply = await self._host.use_tool(self.definition.name, arguments, self.time_limit)
        if reply.ok:
            return reply.text
        if reply.is_late:
            raise ToolTimeout
        if reply.failure:
            raise EnvironmentFailure(reply.failure)
        raise ToolError(reply.text)
