"""Waiting is not failing: a time limit counts the work, and what cannot begin is waited for, told and counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith import (
    BaseEnvironment,
    Chat,
    EpisodeStart,
    Outcome,
    ScriptedEngine,
    ToolRegistry,
    Trajectory,
    tool,
)
from turnsmith.concurrency import clocks, environment_threads, threads
from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.concurrency.threads import ThreadPool
from turnsmith.config import EnvironmentConfig
from turnsmith.env import EnvironmentSpec
from turnsmith.env.host import open_host
from turnsmith.env.isolation.pool import close_workers
from turnsmith.errors import Overloaded
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.retry import play_episode
from turnsmith.rollout.rewards.reward_function import RewardFailure, compute_score
from turnsmith.rollout.spec import Limits, RolloutSpec
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.sandbox import PythonTool, SandboxLimits


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_shared", ThreadPool(limit=4))
    monkeypatch.setattr(environment_threads, "_shared", EnvironmentThreads(limit=4))


@tool(time_limit=0.5)
def lookup(x: int) -> str:
    """Ask a service."""
    time.sleep(0.1)
    return "ok"


@pytest.mark.usefixtures("four_threads")
async def test_no_tool_call_times_out_while_it_waits_for_a_thread() -> None:
    registry, began = ToolRegistry([lookup]), time.monotonic()
    results = await asyncio.gather(*(registry.call(ToolCall("lookup", {"x": i})) for i in range(80)))
    assert Counter((result.ok, result.text) for result in results) == {(True, "ok"): 80}
    ideal = 80 * 0.1 / 4
    assert ideal / (time.monotonic() - began) > 0.5, "threads stood idle"  # benchmarks/waiting.py measures it


@pytest.mark.usefixtures("four_threads")
async def test_no_reward_times_out_while_it_waits_for_a_thread() -> None:
    def judge(trajectory: Trajectory) -> float:
        time.sleep(0.1)
        return 1.0

    scores = await asyncio.gather(*(compute_score(judge, Trajectory(), None, 0.5) for _ in range(80)))
    assert scores == [1.0] * 80
    with pytest.raises(RewardFailure, match=r"judge took longer than 0.02 seconds"):
        await compute_score(judge, Trajectory(), None, 0.02)


@pytest.mark.nightly
async def test_no_program_times_out_while_it_waits_for_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.tools.sandbox.python_tool.START_LIMIT", 2.0)  # in place of a minute
    registry = ToolRegistry([PythonTool(SandboxLimits(seconds=2))])
    code = "import time; time.sleep(0.5); print(1)"
    results = await asyncio.gather(*(registry.call(ToolCall("python", {"code": code})) for _ in range(100)))
    assert Counter((result.ok, result.text) for result in results) == {(True, "1\n"): 100}


class Clerk(BaseEnvironment):
    """Blocks for as long as its config says, in a step and in a tool."""

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> Any:
        time.sleep(self.config.get("seconds", 0.1))
        return "next", 1.0, self.step_count == 1, {}

    @tool(time_limit=1.5)
    def search(self) -> str:
        """Search."""
        time.sleep(self.config.get("seconds", 0.1))
        return "found"


@pytest.mark.nightly
async def test_in_a_worker_process_the_clocks_on_both_sides_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.env.isolation.connection.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("turnsmith.env.isolation.remote_host.ANSWER_SECONDS", 0.5)
    config = EnvironmentConfig(isolation="process", isolation_workers=1, seconds=0.5)
    hosts = [open_host(EnvironmentSpec.of(Clerk, config)) for _ in range(1000)]
    await asyncio.gather(*(host.reset() for host in hosts))
    called = await asyncio.gather(*(ToolRegistry(host.tools()).call(ToolCall("search", {})) for host in hosts))
    # In 128 threads the last one begins after four seconds.
    assert Counter((result.ok, result.failure) for result in called) == {(True, ""): 1000}
    await close_workers()


@pytest.mark.usefixtures("four_threads")
async def test_an_episodes_time_limit_does_not_count_waiting_and_the_record_has_it(chat: Chat) -> None:
    spec = RolloutSpec(environment=EnvironmentSpec.of(Clerk), limits=Limits(seconds=0.8))
    engine = ScriptedEngine(["a", "b"], chat)
    starts = [EpisodeStart(f"e{number}") for number in range(40)]  # 80 steps: 2 s in four threads
    played = await asyncio.gather(*(play_episode(start, spec, engine, chat) for start in starts))
    assert Counter(result.trajectory.outcome for result in played) == {Outcome.COMPLETED: 40}
    [what] = {what for result in played for what in result.trajectory.waits}
    assert "one of 4 threads that environments live in (make methods that wait async" in what
    assert sum(result.trajectory.waits.get(what, 0.0) for result in played) > 10.0


async def test_overload_that_lasts_is_an_outcome_that_is_retried_and_never_told(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, four_threads: None
) -> None:
    monkeypatch.setattr(threads, "OVERLOAD_SECONDS", 0.2)
    block = [threads.shared_threads().start(time.sleep, 1.0) for _ in range(4)]
    registry = ToolRegistry([lookup])
    with pytest.raises(Overloaded, match=r"It waited 0 seconds for one of 4 threads .*make methods that wait async"):
        await registry.call(ToolCall("lookup", {"x": 1}))
    call = '<tool_call>{"name": "lookup", "arguments": {"x": 1}}</tool_call>'
    spec = RolloutSpec(environment=EnvironmentSpec.of(Clerk), tools=registry, limits=Limits(prompt_tokens=4096))
    result = await play_episode(EpisodeStart("e"), spec, ScriptedEngine([call, "a", "b"], chat), chat)
    assert result.trajectory.outcome is Outcome.COMPLETED
    assert {attempt.outcome for attempt in result.given_up} == {Outcome.OVERLOADED}
    assert FailurePolicy().decide(result.given_up[0])[1].retries == 8
    assert not any("failure" in call for call in result.trajectory.infos[0]["tool_calls"])
    for one in block:
        await one.wait()


async def test_a_long_wait_is_told_once_with_the_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clocks, "_LONG_WAIT", 0.05)
    pool = ThreadPool(limit=1)
    with caplog.at_level(logging.WARNING):
        await asyncio.gather(*(pool.run(time.sleep, 0.1) for _ in range(5)))
    assert len(caplog.records) == 1
    assert "for one of 1 threads for tools and reward functions" in caplog.text
    assert "make methods that wait async" in caplog.text


@pytest.mark.usefixtures("four_threads")
async def test_waiting_for_a_reward_is_in_the_record(chat: Chat) -> None:
    def judge(trajectory: Trajectory) -> float:
        time.sleep(0.1)
        return 1.0

    spec = RolloutSpec(environment=EnvironmentSpec.of(Clerk, EnvironmentConfig(seconds=0)), reward_fn=judge)
    starts = [EpisodeStart(f"e{number}") for number in range(20)]
    engine = ScriptedEngine(["a", "b"], chat)
    played = await asyncio.gather(*(play_episode(start, spec, engine, chat) for start in starts))
    assert any("reward functions" in what for result in played for what in result.trajectory.waits)
