"""An environment in a worker process does what it does here, and looks the same to an episode."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from tests.unit.env.isolation.games import (
    AsyncCounter,
    Caller,
    Counter,
    Forker,
    Loaded,
    Shown,
    Wrapped,
    twice_the_total,
)

from turnsmith import EnvironmentConfig, ToolRegistry, Trajectory
from turnsmith.env import BaseEnvironment, EnvironmentSpec, StepResult
from turnsmith.env.host import Host, open_host
from turnsmith.env.isolation import launch
from turnsmith.env.isolation.pool import close_workers, isolation_status
from turnsmith.errors import EnvironmentFailure, WorkerLost
from turnsmith.rollout.rewards.reward_function import RewardFailure, compute_score
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.step_tool import EnvironmentStepTool


def spec(environment: type, mode: str = "process", **settings: Any) -> EnvironmentSpec:
    config = EnvironmentConfig(isolation=mode, isolation_workers=1, max_steps=50, **settings)
    return EnvironmentSpec.of(environment, config)


async def started(environment: type, mode: str = "process", **settings: Any) -> Host:
    host = open_host(spec(environment, mode, **settings))
    await host.reset(seed=3)
    return host


async def test_every_mode_plays_the_same_episode():
    """One worker for all that is checked here: each start of one takes as long as a hundred tests."""
    played = []
    for mode in ("loop", "thread", "process"):
        host = open_host(spec(Counter, mode, goal=7))
        first = await host.reset(seed=3, task={"row": 1})
        steps = [await host.step(action) for action in ("go", "stop")]
        processes = {step.info.pop("process") for step in steps}
        assert (processes == {os.getpid()}) == (mode != "process")
        played.append((first, host.prompt_prefix(), steps, await host.is_over()))
        await host.close()
    assert played[0] == played[1] == played[2]
    assert played[0][0] == "start 3 {'row': 1}"
    await check_openings()
    await check_async_methods()
    await check_tools()
    await check_step_tools()
    await check_rewards()
    await check_light_start()
    await check_failures()
    assert isolation_status().workers == 1
    await close_workers()
    assert isolation_status().workers == 0


class Large(Counter):
    """Its constructor takes 200 MB."""

    def __init__(self, config: EnvironmentConfig | None = None) -> None:
        super().__init__(config)
        self.kept = bytearray(b"x" * 200 * 2**20)


async def test_a_worker_that_takes_too_much_memory_is_told_with_its_setting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Else there are only retries, and waits for imports."""
    monkeypatch.setattr(launch, "_told", set())
    hosts = [open_host(spec(Large, isolation_memory_gib=0.5)) for _ in range(5)]
    await asyncio.gather(*(host.reset(seed=3) for host in hosts), return_exceptions=True)
    await asyncio.sleep(1)
    (told,) = [record.getMessage() for record in caplog.records if "worker process with" in record.getMessage()]
    assert "took more than 0.5 GiB of memory (environment.isolation_memory_gib allows more); their episodes" in told
    await asyncio.gather(*(host.close() for host in hosts))
    await close_workers()


async def test_an_environment_that_ends_its_worker_twice_runs_alone_from_then_on():
    target, lost = spec(Forker), []
    for _ in range(3):
        neighbour, culprit = open_host(target), open_host(target)
        await neighbour.reset(seed=2)
        await culprit.reset(seed=1)
        with pytest.raises(WorkerLost):
            await culprit.step("exit")
        try:
            await neighbour.step("__str__")
            lost.append(False)
        except WorkerLost:
            lost.append(True)
        await asyncio.gather(neighbour.close(), culprit.close())
    assert lost == [True, True, False]
    await close_workers()


async def check_openings() -> None:
    for mode in ("loop", "thread", "process"):
        host = open_host(spec(Shown, mode))
        assert await host.reset() == "2 + 3?"
        assert host.prompt_prefix() == "Answer with a number."
        assert host.examples == (("user", "1 + 1?"), ("assistant", "2"))
        assert (await host.step("5")).observation == "2 + 3?"
        await host.close()


async def check_async_methods() -> None:
    host, wrapped = await started(AsyncCounter), await started(Wrapped)
    assert (await host.step("go")).observation == "go 4"
    assert (await wrapped.step("a")).observation == "later a"
    with pytest.raises(EnvironmentFailure, match=r"AsyncCounter.step raised ValueError: bad \(in step, games.py line"):
        await host.step("raise")
    await host.close()
    await wrapped.close()


async def check_tools() -> None:
    told = []
    for mode in ("thread", "process"):
        host = await started(Counter, mode)
        from turnsmith.rollout.turn import EpisodeTools
        from turnsmith.tools.parsing import FunctionCallingParser

        registry = EpisodeTools(host, ToolRegistry(), FunctionCallingParser()).registry
        calls = [
            ToolCall("add", {"amount": 5}),
            ToolCall("add", {"amount": "6"}),
            ToolCall("add", {"amount": -1}),
            ToolCall("add", {"amount": 13}),
            ToolCall("add", {"amount": "many"}),
            ToolCall("add", {"amount": 10**40}),
            ToolCall("wait", {}),
            ToolCall("add", {"amount": 100}),
        ]
        results = [await registry.call(call, episode_id="episode-1") for call in calls]
        told.append(
            (
                [(one.ok, one.text, one.failure, one.cut) for one in results],
                registry.definitions(),
                await host.is_over(),
            )
        )
        await host.close()
    assert told[0] == told[1]
    assert told[1][0][0] == (True, '{"total":8,"episode":"episode-1"}', "", False)
    assert told[1][2] is True


async def check_step_tools() -> None:
    for mode in ("thread", "process"):
        host = await started(Caller, mode)
        [ring] = host.tools()
        assert ring.is_step
        assert ring.definition.description == "Ring."
        told = '{"name": "ring", "arguments": {"bell": 2}}'
        assert await ring.execute(bell=2) == StepResult(told, 0.5, True, False, {"rang": True})
        with pytest.raises(EnvironmentFailure, match=r"Caller.step raised OSError: no sound"):
            await ring.execute(bell="cracked")
        registry = ToolRegistry([EnvironmentStepTool(Caller()).of_episode(host, host.limit)])
        result = await registry.call(ToolCall("environment_step", {"action": "pull"}))
        assert (result.text, result.step) == ("pull", StepResult("pull", 0.5, True, False, {"rang": True}))
        with pytest.raises(EnvironmentFailure, match=r"Caller.step raised OSError: no sound"):
            await registry.call(ToolCall("environment_step", {"action": "cracked"}))
        await host.close()


async def check_rewards() -> None:
    trajectory = Trajectory(actions=["go"])
    for mode in ("thread", "process"):
        host = await started(Counter, mode)
        assert await compute_score(twice_the_total, trajectory, host.environment, 9.0) == 7.0
        assert trajectory.reward_shares == {"total": 3.0}
        assert await compute_score(lambda one, environment: environment.total, trajectory, host.environment, 9.0) == 3
        assert await compute_score(lambda one: 0.5, trajectory, host.environment, 9.0) == 0.5
        with pytest.raises(RewardFailure, match="raised ZeroDivisionError"):
            await compute_score(lambda one, environment: 1 / 0, trajectory, host.environment, 9.0)
        with pytest.raises(RewardFailure, match=r"returned 'lots'; it must return a finite number"):
            await compute_score(lambda one, environment: "lots", trajectory, host.environment, 9.0)
        with pytest.raises(RewardFailure, match=r"returned 'nan'; it must return a finite number"):
            await compute_score(lambda one, environment: float("nan"), trajectory, host.environment, 9.0)
        await host.close()
    with pytest.raises(AttributeError, match="Counter runs in another process, so its 'total' cannot be read here"):
        _ = host.environment.total


async def check_light_start() -> None:
    host = open_host(spec(Loaded))
    loaded = await host.reset()
    assert set(loaded.split()) <= {"pydantic"}, "a worker that has no tools to check loads nothing heavy"
    await host.close()


async def check_failures() -> None:
    class Broken(BaseEnvironment):
        def reset(self) -> str:
            raise OSError("no board")

        def step(self, action: str) -> Any: ...

    with pytest.raises(EnvironmentFailure, match=r"reset raised OSError: no board \(in reset, test_remote_host.py"):
        await started(Broken)
    missing = open_host(EnvironmentSpec("no_such_module:Game", EnvironmentConfig(isolation_workers=1), "process"))
    with pytest.raises(EnvironmentFailure, match="There is no module 'no_such_module' to import"):
        await missing.reset()
    with pytest.raises(EnvironmentFailure, match="step was called before reset"):
        await open_host(spec(Counter)).step("a")
    host = await started(Counter)
    with pytest.raises(EnvironmentFailure, match="cannot leave this process"):
        await host.step("\ud800")
    cut_short = asyncio.ensure_future(host.step("go"))
    await asyncio.sleep(0)
    cut_short.cancel()
    await host.close()
    await host.close()
    await missing.close()
    assert isolation_status().calls <= 1
