"""The host takes environments of every shape off the event loop and turns breaches into sentences."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnsmith.concurrency.threads import ThreadPool
from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentHost, EnvironmentSpec
from turnsmith.env.host import open_host
from turnsmith.errors import EnvironmentFailure


class Scripted(BaseEnvironment):
    """Returns what its config says."""

    def reset(self) -> Any:
        return self.config.get("first", "start")

    def step(self, action: str) -> Any:
        returned = self.config.get("returned")
        if isinstance(returned, BaseException):
            raise returned
        return returned


class Silent(BaseEnvironment):
    """Never says that it is done."""

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> tuple:
        return "next", 0.0, False, {}


class OverAtOnce(Silent):
    """There is nothing left to do."""

    def reset(self) -> str:
        self.done = True
        return "solved"


async def started(environment: type, **settings: Any) -> EnvironmentHost:
    host = EnvironmentHost(EnvironmentSpec.of(environment, EnvironmentConfig(**settings)))
    await host.reset(seed=1)
    return host


async def step(**settings: Any) -> Any:
    return await (await started(Scripted, **settings)).step("act")


async def test_an_environment_of_another_library_needs_no_is_done():
    class Plain:
        def reset(self) -> str:
            return "start"

        def step(self, action: str) -> tuple:
            return "next", 0.0, action == "last", {}

    host = await started(Plain)
    assert [(await host.step(action)).terminated for action in ("a", "b", "last")] == [False, False, True]


async def test_it_knows_whether_all_methods_are_async():
    class Async(BaseEnvironment):
        async def reset(self) -> str:
            return "start"

        async def step(self, action: str) -> tuple:
            return "next", 0.0, False, {}

    assert [EnvironmentHost.around(one(EnvironmentConfig())).is_async for one in (Async, Silent)] == [True, False]


async def test_four_and_five_values():
    four = await step(returned=("next", 1, True, {"k": 1}))
    assert (four.observation, four.reward, four.terminated, four.truncated, four.info) == (
        "next",
        1.0,
        True,
        False,
        {"k": 1},
    )
    five = await step(returned=("next", 0.5, False, True, None))
    assert (five.terminated, five.truncated, five.done, five.info) == (False, True, True, {})


async def test_numpy_numbers_are_numbers():
    result = await step(returned=("next", np.float32(0.25), np.bool_(True), {}))
    assert (result.reward, result.terminated) == (0.25, True)
    assert type(result.reward) is float


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (("next", 1.0, True), "returned 3 values; it must return"),
        (None, "returned NoneType; it must return"),
        ((7, 1.0, True, {}), "returned an observation of type int; it must be a string"),
        (("next", float("nan"), True, {}), "reward nan; it must be a finite number"),
        (("next", None, True, {}), "reward None"),
        (("next", "1.0", True, {}), "reward '1.0'"),
        (("next", np.array([1.0, 2.0]), True, {}), "must be a finite number"),
        (("next", 1.0, None, {}), "done = None; it must be True or False"),
        (("next", 1.0, False, np.array([True, False]), {}), "truncated ="),
        (("next", 1.0, True, []), "info of type list; it must be a dict"),
        (KeyError("sword"), r"Scripted.step raised KeyError: 'sword' \(in step, test_local_host.py line \d+\)"),
        (StopIteration(3), "Scripted.step raised StopIteration: 3"),
        (SystemExit(2), "Scripted.step raised SystemExit: 2"),
    ],
)
async def test_breaches_are_told_in_a_sentence(returned, sentence):
    with pytest.raises(EnvironmentFailure, match=sentence):
        await asyncio.wait_for(step(returned=returned), 5)


async def test_reset_must_give_text_and_may_give_gymnasiums_pair():
    host = EnvironmentHost(EnvironmentSpec.of(Scripted, EnvironmentConfig(first=("hello", {"k": 1}))))
    assert await host.reset() == "hello"
    assert host.environment.get_state_description() == "hello"
    with pytest.raises(EnvironmentFailure, match=r"Scripted\.reset returned an observation of type NoneType"):
        await started(Scripted, first=None)


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_an_episode_that_is_over_before_its_first_turn_is_a_failure(isolation: str):
    host = open_host(replace(EnvironmentSpec.of(OverAtOnce), isolation=isolation))
    with pytest.raises(EnvironmentFailure, match=r"OverAtOnce\.reset has set done: an episode begins with something"):
        await host.reset(seed=1)
    await host.close()


async def test_a_constructor_that_raises_is_an_environment_failure():
    class Broken(Silent):
        def __init__(self, config: EnvironmentConfig) -> None:
            raise OSError("no licence server")

    with pytest.raises(EnvironmentFailure, match=r"Broken.__init__ raised OSError: no licence server"):
        await started(Broken)


async def test_half_a_surrogate_pair_becomes_a_replacement_character():
    assert (await step(returned=("a\ud800b 🎉", 0.0, True, {}))).observation == "a\ufffdb 🎉"


async def test_steps_are_counted_and_max_steps_cuts():
    host = await started(Silent, max_steps=2)
    assert not (await host.step("a")).done
    last = await host.step("b")
    assert (last.terminated, last.truncated, host.environment.step_count) == (False, True, 2)


async def test_an_environment_that_counts_itself_is_not_counted_twice():
    class Counting(Silent):
        def step(self, action: str) -> tuple:
            self.step_count += 1
            return super().step(action)

    host = await started(Counting, max_steps=2)
    assert not (await host.step("a")).done
    assert (await host.step("b")).truncated


async def test_setting_done_terminates():
    class Quiet(Silent):
        def step(self, action: str) -> tuple:
            self.done = True
            return "end", 0.0, False, {}

    assert (await (await started(Quiet)).step("a")).terminated


@pytest.mark.parametrize("isolation", ["thread", "loop"])
async def test_an_environment_without_is_done_ends_only_by_its_steps(isolation: str):
    class Bare:
        def reset(self) -> str:
            return "start"

        def step(self, action: str) -> tuple:
            return "next", 0.0, action == "end", {}

    host = await started(Bare, isolation=isolation)
    results = [await host.step(action) for action in ("go on", "end")]
    assert [(result.terminated, result.truncated) for result in results] == [(False, False), (True, False)]


async def test_seed_and_task_are_passed_only_when_taken():
    class Seeded(Silent):
        def reset(self, seed: int, task: dict | None = None) -> str:
            return f"{seed} {task}"

    host = EnvironmentHost(EnvironmentSpec.of(Seeded))
    assert await host.reset(seed=7, task={"q": 1}) == "7 {'q': 1}"
    assert await EnvironmentHost(EnvironmentSpec.of(Seeded)).reset() == "0 None"
    assert await EnvironmentHost(EnvironmentSpec.of(Silent)).reset(seed=7, task={"q": 1}) == "start"


async def test_async_methods_are_awaited_on_the_loop():
    class Async(BaseEnvironment):
        async def reset(self, seed: int = 0) -> str:
            await asyncio.sleep(0)
            self.thread = threading.current_thread()
            return f"start {seed}"

        async def step(self, action: str) -> tuple:
            if action == "boom":
                raise ValueError("bad")
            return action, 1.0, False, {}

        async def get_prompt_prefix(self) -> str:
            return "rules"

        async def close(self) -> None:
            self.closed = True

    host = EnvironmentHost(EnvironmentSpec.of(Async, EnvironmentConfig(max_steps=2)))
    assert await host.reset(seed=3) == "start 3"
    assert host.prompt_prefix() == "rules"
    assert host.environment.thread is threading.current_thread()
    with pytest.raises(EnvironmentFailure, match=r"Async\.step raised ValueError: bad"):
        await host.step("boom")
    assert not (await host.step("a")).done
    assert (await host.step("b")).truncated
    await host.close()
    assert host.environment.closed


async def test_a_plain_method_that_returns_an_awaitable_is_awaited():
    class Wrapped(Silent):
        def step(self, action: str) -> Any:
            async def later() -> tuple:
                return "later", 1.0, True, {}

            return later()

    assert (await (await started(Wrapped)).step("a")).observation == "later"


async def test_plain_methods_never_block_the_event_loop():
    loop_goes_on = threading.Event()

    class Slow(Silent):
        def step(self, action: str) -> tuple:
            assert loop_goes_on.wait(5), "the event loop stood still"
            return super().step(action)

    host = await started(Slow)
    stepping = asyncio.create_task(host.step("a"))
    await asyncio.sleep(0.01)
    loop_goes_on.set()
    await stepping


async def test_close_waits_for_a_call_that_is_still_in_its_thread():
    events: list[str] = []
    release, closed = threading.Event(), threading.Event()

    class Stuck(Silent):
        def step(self, action: str) -> tuple:
            release.wait(5)
            events.append("step ended")
            return super().step(action)

        def close(self) -> None:
            events.append("closed")
            closed.set()

    host = await started(Stuck)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host.step("a"), 0.02)
    await host.close()
    assert events == []
    release.set()
    assert await asyncio.to_thread(closed.wait, 5)
    assert events == ["step ended", "closed"]


async def test_a_failing_close_is_logged_and_called_once(caplog):
    class Messy(Silent):
        def close(self) -> None:
            raise OSError("gone")

    host = await started(Messy)
    await host.close()
    await host.close()
    assert caplog.text.count("Messy.close raised OSError: gone") == 1


async def test_an_environment_without_close_needs_none(caplog):
    class Plain:
        def __init__(self, config: Any = None) -> None: ...

        def reset(self) -> str:
            return "start"

        def step(self, action: str) -> tuple:
            return "next", 0.0, True, {}

    host = await started(Plain)
    await host.close()
    await host.settle()
    assert caplog.text == ""


async def test_the_pool_is_bounded():
    pool = ThreadPool(limit=3)
    threads = threading.active_count()
    most = running = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run(work) for _ in range(30)))
    assert most == 3
    assert threading.active_count() <= threads + 3


async def test_a_step_before_reset_is_told():
    with pytest.raises(EnvironmentFailure, match="before reset"):
        await EnvironmentHost(EnvironmentSpec.of(Silent)).step("a")


async def test_nothing_is_over_before_reset() -> None:
    host = EnvironmentHost(EnvironmentSpec.of(Silent, EnvironmentConfig()))
    assert await host.is_over() is False


async def test_an_environment_may_solve_its_task() -> None:
    class Solved(Silent):
        def solve(self) -> str:
            return "the answer"

    assert await (await started(Solved)).solve() == "the answer"
    assert await (await started(Silent)).solve() is None


async def test_what_was_never_built_is_closed_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Silent):
        def __init__(self, config: Any) -> None:
            raise ValueError("no disk")

        def close(self) -> None:
            raise AssertionError("there is nothing to close")

    host = EnvironmentHost(EnvironmentSpec.of(Broken, EnvironmentConfig()))
    with pytest.raises(EnvironmentFailure, match="no disk"):
        await host.reset(seed=1)
    await host.close()
    assert caplog.records == []
