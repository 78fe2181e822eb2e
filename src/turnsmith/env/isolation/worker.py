"""The other side: a process that hosts many environments for one connection.

Environments are run by the same `EnvironmentHost` that runs them where nothing is isolated, so they do the same in
every mode: plain methods in threads of this process, `async` ones on its event loop. Plain steps, which are nearly all
that happens, take a shorter way (see `crew`). Loads no torch, ray or verl, unless the user's own code does.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import json
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.codec import unpack_trajectory
from turnsmith.env.isolation.crew import Crew, Wire
from turnsmith.env.isolation.marks import Busy, MarkedHost
from turnsmith.env.isolation.serialization import unpack_function, unpack_spec
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.result import MOST_TEXT, StepResult
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, describe_failure
from turnsmith.threads import ThreadPool
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import TIMED_OUT, ToolRegistry
from turnsmith.tools.tool import Tool, tools_of

_THREADS = 128
_TICK = 0.1
_LAST_SECONDS = 0.8
"""For closing what is still open when nobody listens any more; the keeper waits a little longer than this."""


def serve(connection: int, busy: memoryview, only: str = "") -> None:
    """Host environments for whoever is at the other end, until they leave.

    Args:
        connection: The descriptor of a connected socket.
        busy: Where to write down which environments are doing something, for the case that this process ends by it.
        only: The one environment to host, as `module:Name`; then nothing that is pickled is read. Empty: any.
    """
    faulthandler.enable()  # a crash in native code says where
    asyncio.run(_Worker(busy, only).run(socket.socket(fileno=connection)))


class _Hosted:
    """One environment."""

    __slots__ = ("began", "host", "idle", "number", "step", "tools", "work")

    def __init__(self, number: int, host: EnvironmentHost) -> None:
        self.number = number
        self.host = host
        self.tools: ToolRegistry | None = None
        self.work: asyncio.Task[None] | None = None
        """What it does on the event loop; one thing at a time."""
        self.step: m.Step | None = None
        """The plain step that a thread does, or is about to do."""
        self.began = 0.0
        """When that began; 0: it has not."""
        self.idle: asyncio.Future[None] | None = None
        """Done when it has ended; made by who waits for that."""


class _Worker:
    def __init__(self, busy: memoryview, only: str) -> None:
        self._only = only
        self._busy = Busy(busy)
        self._threads = ThreadPool(_THREADS)
        self._crew = Crew(_THREADS)
        self._defined: dict[int, m.Define] = {}
        self._specs: dict[int, EnvironmentSpec] = {}
        self._functions: dict[int, Any] = {}
        self._hosted: dict[int, _Hosted] = {}
        self._stepping: dict[int, _Hosted] = {}
        """Plain steps that are to be answered, by their call; who takes one out answers it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    async def run(self, connection: socket.socket) -> None:
        """Answer until the connection ends, then close what is still open."""
        self._loop = loop = asyncio.get_running_loop()
        over = asyncio.Event()
        self._wire = Wire(connection, self._crew, self._sort, partial(loop.call_soon_threadsafe, over.set))
        self._say(m.Ready(0))
        self._crew.put(self._wire.read)
        loop.call_later(_TICK, self._look)
        await over.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await asyncio.gather(*map(self._close, list(self._hosted)))

    def _say(self, reply: m.Reply) -> None:
        self._wire.send(m.encode(reply))

    # In a thread of the crew.

    def _sort(self, message: memoryview) -> Callable[[], None] | None:
        request = m.read_request(message)
        hosted = self._hosted.get(request.environment) if isinstance(request, m.Step) else None
        if isinstance(request, m.Step) and hosted is not None and hosted.host.has_plain_step:
            hosted.step = request
            return partial(self._step, request, hosted)
        self._loop.call_soon_threadsafe(self._begin, request)
        return None

    def _step(self, request: m.Step, hosted: _Hosted) -> None:
        hosted.began = time.monotonic()
        self._stepping[request.call] = hosted
        try:
            result = self._busy.call(hosted.number, hosted.host.step_here, request.action)
            reply = _stepped(request, result) if isinstance(result, StepResult) else None
        except BaseException as error:
            result, reply = None, _failed(request, error)
        hosted.step, hosted.began = None, 0.0
        if self._stepping.pop(request.call, None) is None:
            pass  # it was given up, and that was said
        elif reply is not None:
            self._say(reply)
        else:  # a plain method that wraps an async one
            self._loop.call_soon_threadsafe(self._start, self._finish(request, hosted, result), hosted)
        if hosted.idle is not None:
            self._loop.call_soon_threadsafe(_release, hosted.idle)

    # On the event loop.

    def _look(self) -> None:
        """Give up plain steps that have run for too long."""
        now = time.monotonic()
        for call, hosted in list(self._stepping.items()):
            if hosted.began and now - hosted.began > hosted.host.limit and self._stepping.pop(call, None):
                self._say(m.ErrorReply(call, str(hosted.host.late("step")), is_late=True, is_stuck=True))
        self._loop.call_later(_TICK, self._look)

    def _begin(self, request: Any) -> None:
        if isinstance(request, m.Define):
            self._defined[request.number] = request
        elif isinstance(request, m.Ping):
            self._say(m.BoolReply(request.call))
        elif isinstance(request, m.Close):
            self._start(self._leave(request), None)
        else:
            if isinstance(request, m.Reset):
                name = self._only or self._defined[request.number].name or "environment:The environment"
                host = self._host(EnvironmentSpec(name), request.environment)
                self._hosted[request.environment] = _Hosted(request.environment, host)
            hosted = self._hosted.get(request.environment)
            if hosted is None:
                self._say(m.ErrorReply(request.call, "The environment was closed."))
            else:
                self._start(self._answer(request, hosted), hosted)

    def _host(self, spec: EnvironmentSpec, number: int) -> EnvironmentHost:
        return MarkedHost(spec, self._threads, self._busy, number)

    def _start(self, work: Any, hosted: _Hosted | None) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if hosted is not None:
            hosted.work = task

    async def _finish(self, request: m.Step, hosted: _Hosted, returned: Any) -> None:
        await self._guard(request, hosted, self._await_step(request, hosted, *returned))

    async def _await_step(self, request: m.Step, hosted: _Hosted, returned: Any, before: Any) -> m.Reply:
        return _stepped(request, await hosted.host.finish_step(returned, before))

    async def _answer(self, request: Any, hosted: _Hosted) -> None:
        await self._guard(request, hosted, self._do(request, hosted))

    async def _guard(self, request: Any, hosted: _Hosted, work: Awaitable[m.Reply]) -> None:
        try:
            reply = await work
        except Exception as error:
            reply = _failed(request, error, is_stuck=hosted.host.is_busy)
        self._say(reply)

    async def _do(self, request: Any, hosted: _Hosted) -> m.Reply:
        if isinstance(request, m.Step):
            return _stepped(request, await hosted.host.step(request.action))
        if isinstance(request, m.Reset):
            return await self._reset(request, hosted)
        if isinstance(request, m.UseTool):
            return await self._use(request, hosted)
        if isinstance(request, m.Score):
            return await self._score(request, hosted)
        return m.BoolReply(request.call, await hosted.host.is_over())

    async def _reset(self, request: m.Reset, hosted: _Hosted) -> m.Reply:
        sent = self._defined[request.number]
        async with self._loading:
            spec = self._specs.get(request.number)
            if spec is None:
                limit = sent.call_seconds
                spec = await hosted.host.run("import", unpack_spec, sent, self._only, limit=limit)
                self._specs[request.number] = spec
        hosted.host = host = self._host(spec, hosted.number)
        observation = await host.reset(request.seed, request.task)
        tools = tools_of(host.environment)
        if not tools:
            return m.ResetReply(request.call, observation, host.prompt_prefix(), _NO_TOOLS)
        offered = m.pack(f"{spec.name}: its tools", list(map(_offered, tools)))
        for tool in tools:  # what the model is shown is cut on the other side, where its tokens can be counted
            tool.max_output_tokens = MOST_TEXT // 4
        hosted.tools = ToolRegistry(tools)
        return m.ResetReply(request.call, observation, host.prompt_prefix(), offered)

    async def _use(self, request: m.UseTool, hosted: _Hosted) -> m.Reply:
        if hosted.tools is None:
            raise EnvironmentFailure("The environment has no tools.")
        call = ToolCall(request.name, json.loads(request.arguments))
        result = await hosted.tools.call(call, episode_id=request.episode)
        is_late = not result.ok and result.text == TIMED_OUT
        tool = hosted.tools.get(request.name)
        is_stuck = is_late and tool is not None and not inspect.iscoroutinefunction(tool.function)
        return m.ToolReply(request.call, result.text, result.ok, result.failure, is_late, is_stuck)

    async def _score(self, request: m.Score, hosted: _Hosted) -> m.Reply:
        host, function = hosted.host, self._functions.get(request.number)
        if function is None:
            if self._only:
                raise EnvironmentFailure("This server runs no reward functions of others.")
            sent = self._defined[request.number]
            function = await host.run("import", unpack_function, sent, limit=request.seconds)
            self._functions[request.number] = function
        name = getattr(function, "__name__", type(function).__name__)
        trajectory = unpack_trajectory(request.trajectory)
        paid = await host.run(name, _told, name, function, trajectory, host.environment, limit=request.seconds)
        paid = float(paid) if isinstance(paid, (int, float)) or hasattr(paid, "__float__") else str(paid)[:80]
        return m.ScoreReply(request.call, paid, trajectory.reward_shares)

    async def _leave(self, request: m.Close) -> None:
        self._say(m.BoolReply(request.call, await self._close(request.environment)))

    async def _close(self, environment: int) -> bool:
        """Close it when what it does has ended; returns whether it is really over."""
        hosted = self._hosted.pop(environment, None)
        if hosted is None:
            return True
        if hosted.work is not None and not hosted.work.done():
            hosted.work.cancel()
            await asyncio.wait((hosted.work,))
        hosted.idle = self._loop.create_future()
        if hosted.step is not None:
            await hosted.idle
        await hosted.host.settle()
        await hosted.host.close()
        return not hosted.host.is_busy


def _stepped(request: m.Step, result: StepResult) -> m.Reply:
    info = m.pack("step: info", result.info) if result.info else _NOTHING
    return m.StepReply(request.call, result.observation, result.reward, result.terminated, result.truncated, info)


def _failed(request: Any, error: BaseException, *, is_stuck: bool = False) -> m.ErrorReply:
    if isinstance(error, EnvironmentTimeout):
        return m.ErrorReply(request.call, str(error), is_late=True, is_stuck=is_stuck)
    if isinstance(error, EnvironmentFailure):
        return m.ErrorReply(request.call, str(error))
    return m.ErrorReply(request.call, describe_failure("The environment's worker", error))


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _told(name: str, function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except (Exception, SystemExit) as error:
        raise EnvironmentFailure(describe_failure(name, error)) from error


def _offered(tool: Tool) -> m.ToolInfo:
    definition = tool.definition
    return m.ToolInfo(
        definition.name, definition.description, definition.parameters, tool.time_limit, tool.max_output_tokens
    )


_NOTHING = m.pack("", {})
_NO_TOOLS = m.pack("", [])
