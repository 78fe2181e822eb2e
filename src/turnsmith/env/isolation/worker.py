"""The worker process: hosts many environments for one connection.

It runs environments with the same `EnvironmentHost` that runs them without isolation, so they behave the same in every
mode: plain methods in threads of this process, `async` ones on its event loop. Loads no torch, ray or verl, unless the
user's own code does.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import json
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from typing import Any

from turnsmith.concurrency.clocks import Bottleneck, add_clock, waiting
from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.concurrency.threads import is_cancelled_from_outside
from turnsmith.env.asking import Messages, answer_with
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.serialization import unpack_function, unpack_spec, unpack_trajectory
from turnsmith.env.isolation.usage import WorkerUsage
from turnsmith.env.isolation.wire import Channel
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import (
    EnvironmentFailure,
    EnvironmentTimeout,
    Overloaded,
    describe_failure,
    internal_error,
    is_ours,
    user_failure,
)
from turnsmith.text import replace_surrogates
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import TIMED_OUT, ToolRegistry
from turnsmith.tools.step_result import MOST_TEXT, StepResult
from turnsmith.tools.tool import Tool

_THREADS = 128
_SHORT_WAIT_SECONDS = 0.2
_LOADING = Bottleneck("the import of an environment", "import less when its module loads")
_CLOSE_SECONDS = 0.8
"""The time to close environments when the other side has left; the supervisor waits a little longer."""


def serve(connection: int) -> None:
    """Host environments until the other side closes the connection, the descriptor of a connected socket."""
    faulthandler.enable()  # a crash in native code prints its place
    asyncio.run(_Worker().run(socket.socket(fileno=connection)))


class _CallerClock:
    """The caller's clocks, which are told when the call waits here, and when it stops waiting."""

    def __init__(self, call: int, send: Callable[[m.Reply], None]) -> None:
        self._call = call
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waits = 0

    def pause(self, bottleneck: Bottleneck | None = None) -> None:
        if bottleneck is None:  # a player was asked; the caller knows, because it has to answer
            return
        self._loop.call_soon_threadsafe(self._change, 1, bottleneck)

    def resume(self, bottleneck: Bottleneck | None = None) -> None:
        if bottleneck is None:
            return
        self._loop.call_soon_threadsafe(self._change, -1, bottleneck)

    def _change(self, change: int, bottleneck: Bottleneck | None) -> None:
        self._waits += change
        if change > 0 and self._waits == 1:  # most waits are too short for a message
            self._timer = self._loop.call_later(_SHORT_WAIT_SECONDS, self._tell, bottleneck)
        elif self._waits == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._waits == 0:
            self._send(m.Waiting(self._call, False))

    def _tell(self, bottleneck: Bottleneck | None) -> None:
        self._timer = None
        what, advice = (bottleneck.what, bottleneck.advice) if bottleneck else ("its turn", "")
        self._send(m.Waiting(self._call, True, what, advice))


class _Hosted:
    """One environment, the tools it offers, and the request it is working on."""

    __slots__ = ("host", "tools", "work")

    def __init__(self, host: EnvironmentHost) -> None:
        self.host = host
        self.tools: ToolRegistry | None = None
        self.work: asyncio.Task[None] | None = None


class _Worker:
    def __init__(self) -> None:
        self._threads = EnvironmentThreads(_THREADS)
        self._usage = WorkerUsage(self._threads)
        self._is_used_up = False
        self._defined: dict[int, m.Define] = {}
        self._specs: dict[int, EnvironmentSpec] = {}
        self._functions: dict[int, Any] = {}
        self._hosted: dict[int, _Hosted] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()
        self._left = asyncio.Event()
        """Set when the other side has closed the connection."""
        self._questions: dict[int, asyncio.Future[str]] = {}
        """Unanswered questions to other players, by number."""
        self._numbers = count(1)

    async def run(self, connection: socket.socket) -> None:
        """Answer until the connection ends, then close all environments."""
        self._channel = Channel(connection, self._receive, lambda reason: self._left.set())
        self._send(m.Ready(0))
        await self._left.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*map(self._close, list(self._hosted)))

    def _send(self, reply: m.Reply) -> None:
        try:
            self._channel.send(m.encode(reply))
        except Exception as error:
            # The caller waits for an answer, so it gets the error that the reply cannot be sent.
            reason = replace_surrogates(str(error))[:200]
            self._channel.send(m.encode(m.ErrorReply(reply.call, f"The reply could not be sent: {reason}.")))

    def _receive(self, message: memoryview) -> None:
        try:
            request = m.read_request(message)
        except m.BadMessage:  # not a valid client
            self._channel.close()
            self._left.set()
            return
        if isinstance(request, m.Define):
            self._defined[request.number] = request
        elif isinstance(request, m.Answer):
            self._take_answer(request)
        elif isinstance(request, m.Ping):
            self._send(m.BoolReply(request.call))
        elif isinstance(request, m.Close):
            self._start(self._answer_close(request))
        else:
            if isinstance(request, m.Reset):
                definition = self._defined.get(request.number)
                name = (definition.name if definition else "") or "environment:The environment"
                self._hosted[request.environment] = _Hosted(EnvironmentHost(EnvironmentSpec(name), self._threads))
            hosted = self._hosted.get(request.environment)
            if hosted is None:
                self._send(m.ErrorReply(request.call, "The environment was closed."))
            else:
                hosted.work = self._start(self._answer(request, hosted))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # an event loop keeps only weak references to its tasks
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask(self, call: int, player: str, messages: Messages) -> str:
        """Ask a player, in the process that made the call."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._channel.send(m.encode(m.Ask(call, number, player, messages)))
            return await answer
        finally:
            del self._questions[number]

    def _take_answer(self, answer: m.Answer) -> None:
        question = self._questions.get(answer.number)
        if question is None or question.done():  # the environment no longer waits for it
            return
        if answer.failure:
            question.set_exception(EnvironmentFailure(answer.failure))
        else:
            question.set_result(answer.text)

    async def _answer(self, request: Any, hosted: _Hosted) -> None:
        add_clock(_CallerClock(request.call, self._send))
        answer_with(partial(self._ask, request.call))
        try:
            reply = await self._reply(request, hosted)
        except BaseException as error:
            if is_cancelled_from_outside(error):  # the environment is being closed, and needs no answer
                raise
            reply = _error_reply(request, error, is_stuck=hosted.host.is_busy)
            self._report_use(error)
        if isinstance(request, m.Reset):
            self._report_use()
        self._send(reply)

    def _report_use(self, error: BaseException | None = None) -> None:
        """Report once that the worker is used up, before the reply that makes room for another environment."""
        used_up = None if self._is_used_up else self._usage.used_up(error)
        if used_up is not None:
            self._is_used_up = True
            self._send(used_up)

    async def _reply(self, request: Any, hosted: _Hosted) -> m.Reply:
        if isinstance(request, m.Step):
            return _step_reply(request, await hosted.host.step(request.action))
        if isinstance(request, m.Reset):
            return await self._reset(request, hosted)
        if isinstance(request, m.UseTool):
            return await self._use_tool(request, hosted)
        if isinstance(request, m.Score):
            return await self._score(request, hosted)
        if isinstance(request, m.Solve):
            return m.SolveReply(request.call, m.pack("solve", await hosted.host.solve()))
        return m.BoolReply(request.call, await hosted.host.is_over())

    async def _reset(self, request: m.Reset, hosted: _Hosted) -> m.Reply:
        definition = self._defined[request.number]
        async with waiting(_LOADING):
            await self._loading.acquire()
        try:
            spec = self._specs.get(request.number)
            if spec is None:
                limit = definition.call_seconds
                spec = await hosted.host.run("import", unpack_spec, definition, limit=limit)
                self._specs[request.number] = spec
        finally:
            self._loading.release()
        hosted.host = host = EnvironmentHost(spec, self._threads)
        observation = await host.reset(request.seed, request.task)
        tools, texts = host.tools(), (observation, host.prompt_prefix())
        if not tools:
            return m.ResetReply(request.call, *texts, _NO_TOOLS, host.examples)
        infos = m.pack(f"{spec.name}: its tools", list(map(_tool_info, tools)))
        for tool in tools:  # cut to the model's limit by the process that runs the episode, which has the tokenizer
            tool.max_output_tokens = MOST_TEXT // 4
        hosted.tools = ToolRegistry(tools)
        return m.ResetReply(request.call, *texts, infos, host.examples)

    async def _use_tool(self, request: m.UseTool, hosted: _Hosted) -> m.Reply:
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
            definition = self._defined[request.number]
            function = await host.run("import", unpack_function, definition, limit=request.seconds)
            self._functions[request.number] = function
        name = getattr(function, "__name__", type(function).__name__)
        trajectory = unpack_trajectory(request.trajectory)
        reward = await host.run(name, _call_reward, name, function, trajectory, host.environment, limit=request.seconds)
        is_number = isinstance(reward, (int, float)) or hasattr(reward, "__float__")
        shares = {str(name): float(share) for name, share in trajectory.reward_shares.items()}
        return m.ScoreReply(request.call, float(reward) if is_number else str(reward)[:80], shares)

    async def _answer_close(self, request: m.Close) -> None:
        add_clock(_CallerClock(request.call, self._send))
        is_over = await self._close(request.environment)
        self._report_use()
        self._send(m.BoolReply(request.call, is_over))

    async def _close(self, environment: int) -> bool:
        """Close the environment after its current call; returns whether the call has really ended."""
        hosted = self._hosted.pop(environment, None)
        if hosted is None:
            return True
        if hosted.work is not None and not hosted.work.done():
            hosted.work.cancel()
            await asyncio.wait((hosted.work,))
        await hosted.host.settle()
        await hosted.host.close()
        return not hosted.host.is_busy


def _step_reply(request: m.Step, result: StepResult) -> m.Reply:
    info = m.pack("step: info", result.info) if result.info else _NO_INFO
    return m.StepReply(request.call, result.observation, result.reward, result.terminated, result.truncated, info)


def _error_reply(request: Any, error: BaseException, *, is_stuck: bool = False) -> m.ErrorReply:
    if isinstance(error, EnvironmentTimeout):
        return m.ErrorReply(request.call, str(error), is_late=True, is_stuck=is_stuck)
    if isinstance(error, Overloaded):
        return m.ErrorReply(request.call, str(error), is_overload=True)
    if isinstance(error, EnvironmentFailure):
        return m.ErrorReply(request.call, str(error))
    if is_ours(error):
        return m.ErrorReply(request.call, internal_error(error).text, is_internal=True)
    return m.ErrorReply(request.call, describe_failure("The environment's worker", error))


def _call_reward(name: str, function: Any, *args: Any) -> Any:
    try:
        value = function(*args)
    except (Exception, SystemExit) as error:
        raise user_failure(name, error) from error
    return _await_reward(name, value) if inspect.isawaitable(value) else value


async def _await_reward(name: str, value: Any) -> Any:
    try:
        return await value
    except Exception as error:
        raise user_failure(name, error) from error


def _tool_info(tool: Tool) -> m.ToolInfo:
    definition = tool.definition
    about = (definition.name, definition.description, definition.parameters)
    return m.ToolInfo(*about, tool.time_limit, tool.max_output_tokens, tool.is_step)


_NO_INFO = m.pack("", {})
_NO_TOOLS = m.pack("", [])
