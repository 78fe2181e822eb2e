"""Workers end with whoever started them, wherever they run, and episodes and training go on when one is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.isolated import assert_none_left, run, spec, started, until, worker_of
from tests.e2e.isolated import mark as mark  # every test here is checked by it
from tests.e2e.marked_processes import processes_with
from turnsmith import EnvironmentConfig
from turnsmith.env.isolation.pool import isolation_status
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, WorkerLost

pytestmark = pytest.mark.e2e


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
from turnsmith import EnvironmentConfig
from turnsmith.env.isolation.remote_host import RemoteHost
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec

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
        assert len(processes_with(mark)) >= 9  # itself, two supervisors, two workers, four that were forked away
        os.kill(process.pid, number)
        process.wait(timeout=20)
    assert_none_left(mark, seconds=5)


def test_an_environment_server(mark: str) -> None:
    target = f"{Path(__file__).parent / 'faulty.py'}:Faulty"
    settings = ("environment.isolation_workers=1", "environment.call_seconds=60", "environment.max_steps=100")
    server = subprocess.Popen(
        [sys.executable, "-m", "turnsmith", "serve", "--environment", target, "--port", "0", *settings],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None
    with server.stdout:
        address = server.stdout.readline().split()[-1]

        async def play() -> None:
            found = EnvironmentSpec.of(address, EnvironmentConfig(max_steps=100))
            host = EnvironmentHost(found)
            await host.reset(7)
            here = await host.step("look")
            assert worker_of(here.observation) in {process.pid for process in processes_with(mark)}
            with pytest.raises(EnvironmentFailure, match="KeyError: 'sword'"):
                await host.step("raise")
            with pytest.raises(WorkerLost, match="exited with status 3"):
                await host.step("exit")
            await host.close()
            again = EnvironmentHost(found)
            await again.reset(8)
            assert (await again.step("look")).info == {"count": 0}
            await again.close()

        asyncio.run(play())
        where = address.removeprefix("openenv://").rpartition(":")
        for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\x03\x00\x00\x00\xc1\xc1\xc1"):
            with socket.create_connection((where[0], int(where[2]))) as stranger:
                stranger.send(nonsense)
        asyncio.run(play())
        os.kill(server.pid, signal.SIGINT)
        assert server.wait(timeout=20) == 0
    assert_none_left(mark, seconds=5)


def test_episodes_beside_one_that_kills_its_worker_are_played_to_their_end(tiny_folder: str) -> None:
    from transformers import AutoTokenizer

    from turnsmith import Chat, Limits, Outcome, ScriptedEngine
    from turnsmith.rollout.episode import EpisodeStart
    from turnsmith.rollout.retry import play_episode
    from turnsmith.rollout.spec import RolloutSpec

    chat = Chat(AutoTokenizer.from_pretrained(tiny_folder))

    def say(number: int, turn: int, prompt: str) -> str:
        return "exit" if number == 5 and prompt.count("assistant") == 2 else "look"

    async def play() -> None:
        rollout = RolloutSpec(environment=spec(workers=1, max_steps=3), limits=Limits(prompt_tokens=4096))
        episodes = [
            play_episode(
                EpisodeStart(f"episode-{number}", seed=number),
                rollout,
                ScriptedEngine(partial(say, number), chat),
                chat,
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


@pytest.mark.nightly
def test_training_goes_on_where_an_environment_brings_its_worker_down(tmp_path: Path, mark: str) -> None:
    from tests.e2e.fragile_letters import FragileLetters, last_process
    from turnsmith import ConfigStore, Outcome, RayPPOTrainer, read_episodes

    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 8
    config.training.batch_size = 16
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path / "runs")
    config.checkpoint.save_interval = 0
    config.training.check = False  # it would crash there, once and for all
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
