"""Whatever an environment does in a worker process costs its own episode: neighbours go on, and nothing is left."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from tests.e2e.faulty import AsyncFaulty
from tests.e2e.isolated import mark as mark  # every test here is checked by it
from tests.e2e.isolated import run, spec, started, until, worker_of
from turnsmith.env.isolation.pool import isolation_status
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, WorkerLost

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", r"Faulty.step raised KeyError: 'sword' \(in do_raise, faulty.py line \d+\)"),
        ("allocate", r"Faulty.step raised MemoryError"),
        ("type", r"Faulty.step returned int; it must return"),
        ("nan", r"Faulty.step returned the reward nan; it must be a finite number"),
        ("huge", r"Faulty.step returned a text of 104,857,600 characters; the limit is 4,194,304"),
        ("huge_info", r"info takes 104,857,\d+ bytes; the limit is 1,048,576"),
        ("object", r"info cannot leave its process: socket is not plain data"),
        ("deep", r"info cannot leave its process"),
    ],
)
def test_what_an_environment_does_wrong_costs_its_own_episode(fault: str, sentence: str) -> None:
    async def play() -> None:
        host, neighbour = await started(spec(workers=1)), await started(spec(workers=1))
        before = await neighbour.step("look")
        with pytest.raises(EnvironmentFailure, match=sentence) as raised:
            await host.step(fault)
        assert not isinstance(raised.value, WorkerLost | EnvironmentTimeout)
        after = await neighbour.step("look")
        assert after.observation == before.observation, "the neighbour is in the same process as before"
        assert after.info == {"count": 1}
        await host.close()
        await neighbour.close()
        assert isolation_status().lost == 0

    run(play)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("exit", "exited with status 3"),
        ("segfault", "was killed by SIGSEGV"),
        ("leak", r"took more than 0.5 GiB of memory \(environment.isolation_memory_gib allows more\)"),
        ("bomb", "had started more than 64 processes"),
        ("block", "did not answer for 5 seconds, after a call took too long"),
        ("deaf", "did not answer for 5 seconds, after a call took too long"),
        ("garbage", "it sent something that is not a message"),
        ("flood", "it sent a message of 4,294,967,295 bytes, more than the 20,971,520 allowed"),
    ],
)
def test_a_worker_that_is_lost_is_replaced(fault: str, sentence: str) -> None:
    async def play() -> None:
        found = spec(call_seconds=1.0 if fault in ("block", "deaf") else 60.0)
        host, neighbour = await started(found), await started(found)
        before = await neighbour.step("look")
        others = [await started(found) for _ in range(4)]  # two of them where the fault will be
        with pytest.raises(WorkerLost, match=sentence):
            await host.step(fault)
        assert (await neighbour.step("look")).observation == before.observation
        looks = await asyncio.gather(*(other.step("look") for other in others), return_exceptions=True)
        assert [bool(re.search(sentence, str(look))) for look in looks if isinstance(look, WorkerLost)] == [True, True]
        assert sum(not isinstance(look, BaseException) for look in looks) == 2
        fresh = [await started(found) for _ in range(2)]
        workers = {worker_of((await one.step("look")).observation) for one in fresh}
        assert workers - {worker_of(before.observation)}, "no new worker was started"
        assert isolation_status().lost == 1
        for one in (host, neighbour, *others, *fresh):
            await one.close()
        assert isolation_status().environments == 0

    run(play)


@pytest.mark.parametrize("fault", ["loop", "hang"])
def test_a_call_that_hangs_is_given_up_and_its_worker_drained(fault: str, mark: str) -> None:
    async def play() -> None:
        found = spec(workers=1, call_seconds=1.0)
        host, neighbour = await started(found), await started(found)
        home = worker_of((await neighbour.step("look")).observation)
        began = time.monotonic()
        with pytest.raises(EnvironmentTimeout, match=r"Faulty.step took longer than 1 seconds; environment.call_sec"):
            await host.step(fault)
        assert 0.9 < time.monotonic() - began < 15
        assert (await neighbour.step("look")).observation == f"look in {home}", "the neighbour goes on"
        fresh = await started(found)
        assert worker_of((await fresh.step("look")).observation) != home, "new ones begin elsewhere"
        status = isolation_status()
        assert (status.workers, status.draining, status.environments) == (1, 1, 2)
        await host.close()
        await neighbour.close()
        await until(lambda: isolation_status().draining == 0)
        await until(lambda: not Path(f"/proc/{home}").exists(), "the hung worker is still there")
        await fresh.close()

    run(play)


def test_only_so_many_workers_hang_at_a_time() -> None:
    async def play() -> None:
        found = spec(workers=1, call_seconds=1.0)
        patients = []
        for place in range(3):
            patients.append(await started(found, seed=place))
            host = await started(found, seed=10 + place)
            with pytest.raises(EnvironmentTimeout):
                await host.step("hang")
            await host.close()
            assert isolation_status().draining <= 1
        with pytest.raises(WorkerLost, match="calls in it hung, as in others"):
            await patients[0].step("look")
        for patient in patients:
            await patient.close()

    run(play)


def test_limits_hold_at_reset_and_close_and_for_tools() -> None:
    async def play() -> None:
        with pytest.raises(EnvironmentTimeout, match=r"Faulty.reset took longer than 1 seconds"):
            await started(spec(at_reset="hang", call_seconds=1.0))
        with pytest.raises(WorkerLost, match="exited with status 3"):
            await started(spec(at_reset="exit"))
        host = await started(spec(at_close="hang", call_seconds=1.0))
        began = time.monotonic()
        await host.close()
        assert time.monotonic() - began < 15
        from turnsmith import ToolRegistry
        from turnsmith.tools.definition import ToolCall

        host = await started(spec(workers=1))
        assert host.environment is not None
        registry = ToolRegistry(host.tools())
        right = await registry.call(ToolCall("act", {"what": "wave"}))
        assert (right.ok, right.text) == (True, "wave done")
        wrong = await registry.call(ToolCall("act", {"how": "wave"}))
        assert (wrong.ok, wrong.failure) == (False, "")
        assert "argument" in wrong.text
        failed = await registry.call(ToolCall("act", {"what": "raise"}))
        assert re.match(r"act raised KeyError: 'sword' \(in do_raise", failed.failure)
        late = await registry.call(ToolCall("act", {"what": "hang"}))
        assert late.failure == "act took longer than 0.5 seconds."
        assert not await host.is_over(), "the episode itself goes on"
        await until(lambda: isolation_status().draining == 1, "the worker with a hanging tool takes new episodes")
        await host.close()

    run(play)


def test_async_environments_are_cancelled_or_their_worker_is_killed() -> None:
    async def play() -> None:
        found = spec(AsyncFaulty, workers=1, call_seconds=1.0)
        host, neighbour = await started(found), await started(found)
        home = (await neighbour.step("look")).observation
        with pytest.raises(EnvironmentTimeout):
            await host.step("wait")
        assert (await neighbour.step("look")).observation == home
        assert isolation_status().draining == 0, "what was cancelled does not hang"
        with pytest.raises(WorkerLost, match="did not answer"):
            await host.step("block")
        with pytest.raises(WorkerLost, match="did not answer"):
            await neighbour.step("look")
        await host.close()
        await neighbour.close()

    run(play)


def test_a_thousand_environments_in_one_worker() -> None:
    async def play() -> None:
        found = spec(workers=1, isolation_memory_gib=2.0, call_seconds=60.0)
        hosts = await asyncio.gather(*(started(found, seed) for seed in range(1000)))
        assert isolation_status().environments == 1000
        waiting = asyncio.ensure_future(started(found))
        seen: set[int] = set()
        for _ in range(3):
            results = await asyncio.gather(*(host.step(f"go {place}") for place, host in enumerate(hosts)))
            assert all(result.observation.startswith(f"go {place} in") for place, result in enumerate(results))
            seen |= {worker_of(result.observation) for result in results}
        assert len(seen) == 1
        status = isolation_status()
        assert (status.workers, status.environments, status.waiting) == (1, 1000, 1), "a place too many"
        await hosts[0].close()
        await waiting
        await asyncio.gather(*(host.close() for host in [*hosts, waiting.result()]))
        assert isolation_status().environments == 0

    run(play)
