"""Episodes are spread evenly over the rollout servers, although each process that runs episodes sees only its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from ray.exceptions import RayActorError

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.trainer.verl.server_pool import ServerPool
from turnsmith.trainer.verl.transformers_server import ServerOutput

SAMPLING = Sampling(max_tokens=4, stop_token_ids=(1,))


class Server:
    """Stands where a rollout server's handle is, and counts the sessions that it sees."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.is_lost = seconds, False
        self.requests: list[str] = []
        self.generate = self

    @property
    def sessions(self) -> set[str]:
        return {request.rsplit("-", 1)[0] for request in self.requests}

    async def remote(self, request_id: str, **request: Any) -> ServerOutput:
        if self.is_lost:
            raise RayActorError
        self.requests.append(request_id)
        await asyncio.sleep(self.seconds)
        return ServerOutput([1], [0.0], "completed", extra_fields={"global_steps": 1})


async def play(pool: ServerPool, session: str, turns: int = 1, step: float = 0.0) -> None:
    for turn in range(turns):
        await pool.generate([1] * (turn + 2), SAMPLING, session=session)
        await asyncio.sleep(step)


def spread(servers: list[Server]) -> list[int]:
    return [len(server.sessions) for server in servers]


@pytest.mark.parametrize(
    ("servers", "workers", "episodes"),
    [
        (8, 8, 4),
        (8, 64, 4),
        (32, 16, 16),
        pytest.param(512, 64, 64, marks=pytest.mark.nightly),
        pytest.param(512, 64, 128, marks=pytest.mark.nightly),
        pytest.param(512, 128, 32, marks=pytest.mark.nightly),  # seconds
        (8, 4, 65),
        (8, 3, 5),
    ],
)
async def test_no_server_idles_and_none_has_twice_its_share(servers: int, workers: int, episodes: int) -> None:
    places = [Server() for _ in range(servers)]
    pools = [ServerPool(places).of_worker(place, workers) for place in range(workers)]
    for step in range(2):  # the second step is spread like the first
        before = spread(places)
        work = [play(pool, f"{step}/{w}/{e}") for w, pool in enumerate(pools) for e in range(episodes)]
        await asyncio.gather(*work)
        load = [after - then for after, then in zip(spread(places), before, strict=True)]
        assert min(load) > 0
        assert max(load) <= 2 * workers * episodes / servers


async def test_episodes_with_slow_resets_are_spread_over_the_servers_of_one_process() -> None:
    servers, draw = [Server(0.005) for _ in range(8)], random.Random(0)
    pool = ServerPool(servers)

    async def episode(number: int) -> None:
        await asyncio.sleep(draw.random())
        await play(pool, str(number), turns=5, step=0.1)

    await asyncio.gather(*[episode(number) for number in range(200)])
    assert max(spread(servers)) <= 1.5 * 200 / 8
    assert min(spread(servers)) >= 200 / 8 / 1.5
    assert Counter(session for server in servers for session in server.sessions) == Counter(map(str, range(200))), (
        "every session stays on one server"
    )


async def test_a_session_counts_until_its_episode_ends() -> None:
    servers = [Server(), Server()]
    pool = ServerPool(servers)
    long = asyncio.create_task(play(pool, "long", turns=2, step=0.05))
    await asyncio.sleep(0.01)  # it is in its environment now, and no server is busy
    for number in range(3):
        await asyncio.create_task(play(pool, f"short{number}"))
    assert [server.sessions for server in servers] == [{"long"}, {"short0", "short1", "short2"}]
    await long
    await asyncio.create_task(play(pool, "next"))
    assert "next" in servers[0].sessions


async def test_a_server_that_is_added_gets_new_sessions_until_it_has_as_many() -> None:
    servers = [Server(), Server()]
    pool = ServerPool(servers[:1])
    long = [asyncio.create_task(play(pool, f"long{number}", turns=2, step=0.05)) for number in range(3)]
    await asyncio.sleep(0.01)
    pool.add(servers[1:])
    await asyncio.gather(*[play(pool, f"new{number}", turns=2, step=0.02) for number in range(5)])
    await asyncio.gather(*long)
    assert len(servers[1].sessions) == 4
    assert {"long0", "long1", "long2"} < servers[0].sessions, "they stay where they began"


async def test_the_sessions_of_a_lost_server_move_to_the_others() -> None:
    servers = [Server(), Server(), Server()]
    pool = ServerPool(servers)

    async def episode(name: str, ready: asyncio.Event) -> None:
        await play(pool, name)
        await ready.wait()
        try:
            await play(pool, name)
        except EngineFailure:  # the request that finds the server lost
            await play(pool, name)

    ready = asyncio.Event()
    tasks = [asyncio.create_task(episode(name, ready)) for name in "abcdef"]
    await asyncio.sleep(0)
    servers[0].is_lost = True
    ready.set()
    await asyncio.gather(*tasks)
    assert spread(servers) == [2, 3, 3], "two of them moved, and the others stayed"
