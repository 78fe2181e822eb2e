"""Whatever an environment does in a worker process costs its own episode: neighbours go on, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.faulty import AsyncFaulty, Faulty
from tests.e2e.marked_processes import processes_with
from turnwise import EnvironmentConfig
from turnwise.env.isolation import settings
from turnwise.env.isolation.pool import close_workers, isolation_status
from turnwise.env.isolation.remote import RemoteHost
from turnwise.env.spec import EnvironmentSpec
from turnwise.errors import EnvironmentFailure, EnvironmentTimeout, WorkerLost

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every process that the test starts has it; none of them may be there after the test."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("TURNWISE_TEST_MARK", mark)
    yield mark
    assert_none_left(mark, seconds=0)


def assert_none_left(mark: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while processes_with(mark) and time.monotonic() < until:
        time.sleep(0.05)
    left = processes_with(mark)
    told = [(process.pid, process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert not told


def spec(environment: type = Faulty, workers: int = 2, **settings: Any) -> EnvironmentSpec:
    given = {"call_seconds": 60.0, "isolation_memory_gib": 0.5, "max_steps": 10**9, **settings}
    return EnvironmentSpec.of(environment, EnvironmentConfig(isolation="process", isolation_workers=workers, **given))


async def started(found: EnvironmentSpec, seed: int = 0) -> RemoteHost:
    host = RemoteHost(found)
    await host.reset(seed)
    return host


def worker_of(observation: str) -> int:
    return int(observation.rpartition(" ")[2])


def run(play: Callable[[], Awaitable[None]]) -> None:
    """In an event loop of its own: with it, all workers must end."""
    asyncio.run(play())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", r"Faulty.step raised KeyError: 'sword' \(in do_raise, faulty.py line \d+\)"),
        ("allocate", r"Faulty.step raised MemoryError"),
        ("type", r"Faulty.step returned int; it must return"),
        ("nan", r"Faulty.step returned the reward nan; it must be a finite number"),
        ("huge", r"Faulty.step gave a text of 104,857,600 characters; 4,194,304 are the most"),
        ("huge_info", r"info takes 104,857,\d+ bytes; 1,048,576 are the most"),
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
def test_a_worker_that_is_lost_is_replaced(fault: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.Isolation.__init__, "__defaults__", (1, 0, ("", 0), 64))

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
        assert 0.9 < time.monotonic() - began < 5
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


async def until(condition: Callable[[], bool], told: str = "") -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(told or "it did not come to that")


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
        assert time.monotonic() - began < 5
        from turnwise import ToolRegistry
        from turnwise.tools.definition import ToolCall

        host = await started(spec(workers=1))
        assert host.environment is not None
        registry = ToolRegistry(host.environment.remote_tools)
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


def test_a_forked_copy_of_a_worker_does_not_answer_in_its_place(mark: str) -> None:
    async def play() -> None:
        host = await started(spec(workers=1))
        home = (await host.step("fork")).observation
        for _ in range(20):
            assert worker_of((await host.step("look")).observation) == worker_of(home)
        await until(lambda: len(processes_with(mark)) == 2, "the copy is still there")
        await host.close()

    run(play)


def test_processes_that_were_forked_away_end_with_their_worker(mark: str) -> None:
    async def play() -> None:
        host = await started(spec(workers=1))
        before = len(processes_with(mark))
        await host.step("daemon")
        assert len(processes_with(mark)) == before + 1
        await host.close()

    run(play)
    assert_none_left(mark, seconds=0)


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from tests.e2e.faulty import Faulty
from turnwise import EnvironmentConfig
from turnwise.env.isolation.remote import RemoteHost
from turnwise.env.spec import EnvironmentSpec

async def main():
    config = EnvironmentConfig(isolation="process", isolation_workers=2)
    hosts = [RemoteHost(EnvironmentSpec.of(Faulty, config)) for _ in range(4)]
    for host in hosts:
        await host.reset()
        await host.step("daemon")
    hanging = [asyncio.ensure_future(host.step(fault)) for host, fault in zip(hosts, ("loop", "hang", "deaf"))]
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.gather(*hanging)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_parent_is_killed(number: signal.Signals, mark: str) -> None:
    script = SCRIPT.format(root=str(Path(__file__).parents[2]))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        assert len(processes_with(mark)) >= 9  # itself, two keepers, two workers, four that were forked away
        os.kill(process.pid, number)
        process.wait(timeout=20)
    assert_none_left(mark, seconds=5)


def test_an_environment_server(mark: str) -> None:
    target = f"{Path(__file__).parent / 'faulty.py'}:Faulty"
    server = subprocess.Popen(
        [sys.executable, "-m", "turnwise", "serve-env", target, "--port", "0", "--workers", "3"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    with server.stdout:
        address = server.stdout.readline().strip().rpartition("=")[2]

        async def play() -> None:
            config = EnvironmentConfig(isolation=address, isolation_workers=1, call_seconds=60.0, max_steps=100)
            found = EnvironmentSpec.of(Faulty, config)
            host = await started(found, seed=7)
            here = await host.step("look")
            assert worker_of(here.observation) in {process.pid for process in processes_with(mark)}
            with pytest.raises(EnvironmentFailure, match="KeyError: 'sword'"):
                await host.step("raise")
            with pytest.raises(WorkerLost, match="exited with status 3"):
                await host.step("exit")
            await host.close()
            again = await started(found, seed=8)
            assert (await again.step("look")).info == {"count": 0}
            await again.close()
            with pytest.raises(EnvironmentFailure, match="This server hosts Faulty, not AsyncFaulty"):
                await started(EnvironmentSpec.of(AsyncFaulty, config))

        run(play)
        where = address.removeprefix("tcp://").rpartition(":")
        for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x03\x00\x00\x00\xc1\xc1\xc1"):
            with socket.create_connection((where[0], int(where[2]))) as stranger:
                stranger.send(nonsense)
        run(play)
        os.kill(server.pid, signal.SIGINT)
        assert server.wait(timeout=20) == 130
    assert_none_left(mark, seconds=5)


def test_workers_on_ray(mark: str) -> None:
    import ray

    async def play() -> None:
        config = EnvironmentConfig(isolation="ray", isolation_workers=2, call_seconds=60.0, max_steps=100)
        found = EnvironmentSpec.of(Faulty, config)
        with pytest.raises(WorkerLost, match=r"needs Ray: call ray.init\(\) first"):
            await started(found)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            host, neighbour = await started(found, 1), await started(found, 2)
            before = await neighbour.step("look")
            with pytest.raises(WorkerLost, match="was killed by SIGSEGV"):
                await host.step("segfault")
            assert (await neighbour.step("look")).observation == before.observation
            fresh = await started(found, 3)
            assert worker_of((await fresh.step("look")).observation) != worker_of(before.observation)
            for one in (host, neighbour, fresh):
                await one.close()
            await close_workers()
        finally:
            ray.shutdown()

    run(play)
    assert_none_left(mark, seconds=20)


def test_episodes_beside_one_that_kills_its_worker_are_played_to_their_end(tiny_folder: str) -> None:
    from transformers import AutoTokenizer

    from turnwise import Chat, Limits, Outcome, Sampling, ScriptedEngine
    from turnwise.rollout.attempts import play_episode
    from turnwise.rollout.episode import EpisodeStart
    from turnwise.rollout.failure_policy import FailurePolicy

    chat = Chat(AutoTokenizer.from_pretrained(tiny_folder))

    def say(number: int, turn: int, prompt: str) -> str:
        return "exit" if number == 5 and prompt.count("assistant") == 2 else "look"

    async def play() -> None:
        found = spec(workers=1, max_steps=3)
        episodes = [
            play_episode(
                EpisodeStart(f"episode-{number}", seed=number),
                failures=FailurePolicy(),
                environment=found,
                engine=ScriptedEngine(partial(say, number), chat),
                chat=chat,
                limits=Limits(prompt_tokens=4096),
                sampling=Sampling(),
            )
            for number in range(16)
        ]
        played = [episode.trajectory for episode in await asyncio.gather(*episodes)]
        assert [one.outcome for one in played].count(Outcome.TRUNCATED) == 15
        assert played[5].outcome is Outcome.WORKER_LOST
        assert "exited with status 3" in played[5].error
        most = max(one.attempt for number, one in enumerate(played) if number != 5)
        assert most <= 4, "who kills its worker again and again is kept apart from the others"
        assert isolation_status().environments == 0

    run(play)


def test_training_goes_on_where_an_environment_brings_its_worker_down(tmp_path: Path, mark: str) -> None:
    from tests.e2e.fragile_letters import FragileLetters, last_process
    from turnwise import ConfigStore, Outcome, RayPPOTrainer, read_episodes

    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 8
    config.training.batch_size = 16
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path / "runs")
    config.checkpoint.save_interval = 0
    config.environment.folder = str(tmp_path)
    config.environment.isolation_workers = 2
    trainer = RayPPOTrainer(config, FragileLetters, reward_fn=last_process)
    try:
        records = trainer.fit(num_epochs=1, num_iters_per_epoch=3)
        assert trainer.run is not None
        episodes = [episode for step in (1, 2, 3) for episode in read_episodes(trainer.run.path, step=step)]
    finally:
        trainer.cleanup()
    assert (tmp_path / "crashed").exists()
    assert len(records) == 3
    counted = [episode for episode in episodes if episode.is_counted]
    assert len(counted) == 48
    assert all(episode.outcome is Outcome.COMPLETED and episode.score is not None for episode in counted)
    lost = [episode for episode in episodes if episode.outcome is Outcome.WORKER_LOST]
    assert lost
    assert all("exited with status 9" in episode.error for episode in lost)
    processes = {info["process"] for episode in counted for info in episode.infos}
    assert 2 <= len(processes) <= 12, "workers are kept for many episodes"
    assert_none_left(mark, seconds=10)
