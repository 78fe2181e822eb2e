"""Requests that a rollout server breaks off, because it gets new weights, go on where they were."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError
from tests.unit.inference import sglang_source

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.trainer.verl import server_pool
from turnsmith.trainer.verl.server_pool import PooledServerManager, ServerPool
from turnsmith.trainer.verl.transformers_server import ServerOutput


class Server:
    """Stands where a rollout server's handle is: says the next of its answers, and keeps what it was asked."""

    def __init__(self, *answers: ServerOutput) -> None:
        self.answers, self.asked = list(answers), []
        self.params: dict[str, Any] = {}
        self.generate = self

    async def remote(self, **request: Any) -> ServerOutput:
        self.asked.append((request["prompt_ids"], request["sampling_params"]["max_tokens"]))
        self.params = request["sampling_params"]
        return self.answers.pop(0)


def part(token_ids: list[int], version: int, stop_reason: str = "aborted", **more: Any) -> ServerOutput:
    log_probs = [-float(token) for token in token_ids]
    return ServerOutput(token_ids, log_probs, stop_reason, extra_fields={"global_steps": version, **more})


async def test_a_request_goes_on_after_new_weights() -> None:
    server = Server(part([], 3), part([5, 6], 3), part([7], 4, swaps=[]), part([8, 2], 5, "completed"))
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=9, stop_token_ids=(2,)), session="a")
    assert server.asked == [([1], 9), ([1], 9), ([1, 5, 6], 7), ([1, 5, 6, 7], 6)]
    assert (generation.token_ids, generation.stop_reason) == ([5, 6, 7, 8, 2], "stop")
    assert generation.log_probs == [-5.0, -6.0, -7.0, -8.0, -2.0]
    assert (generation.weights_version, generation.swaps) == (3, ((2, 4), (3, 5)))


async def test_one_that_was_broken_off_after_its_last_token_is_over() -> None:
    server = Server(part([5, 6], 3))
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=2), session="a")
    assert (generation.token_ids, generation.stop_reason) == ([5, 6], "length")


async def test_swaps_within_a_part_are_told_by_the_server() -> None:
    server = Server(part([5, 6], 3, "completed", swaps=[(1, 4)]))
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=9), session="a")
    assert (generation.weights_version, generation.swaps) == (3, ((1, 4),))


@pytest.mark.parametrize("word", ["aborted", "abort"])
async def test_half_a_turn_is_continued_whatever_the_server_calls_it(word: str) -> None:
    server = Server(part([11, 12], 1, word), part([13, 2], 2, "completed"))
    generation = await ServerPool([server]).generate([5], Sampling(max_tokens=64, stop_token_ids=(2,)), session="a")
    assert (generation.token_ids, generation.stop_reason) == ([11, 12, 13, 2], "stop")


@pytest.mark.parametrize("word", ["repetition", "error", "", None])
async def test_a_turn_that_ended_for_an_unknown_reason_is_refused(word: Any) -> None:
    with pytest.raises(EngineFailure, match=r"Rollout server 0 ended a turn with the unknown reason"):
        await ServerPool([Server(part([5], 1, word))]).generate([1], Sampling(max_tokens=9), session="a")


async def test_a_server_that_says_why_a_turn_ended_is_believed() -> None:
    """SGLang's context in verl is one token shorter than ours: it cuts a turn before `max_tokens`."""
    server = Server(part([5, 6], 1, "length"), part([5, 6], 1, "stop"))
    pool = ServerPool([server])
    assert [(await pool.generate([1], Sampling(max_tokens=room), session="a")).stop_reason for room in (3, 2)] == [
        "length",
        "stop",
    ]


async def test_sglang_takes_every_sampling_parameter_as_verl_sends_it() -> None:
    server = Server(part([5, 2], 1, "stop"))
    manager: Any = object.__new__(PooledServerManager)
    manager.server_handles, manager.rollout_config = [server], SimpleNamespace(name="sglang")
    pool = manager.get_client().of_worker(0, 1)
    await pool.generate([1], Sampling(max_tokens=9, temperature=0.5, stop_token_ids=(2,), seed=7), session="a")
    sent = dict(server.params)
    assert sent.pop("logprobs")  # verl takes these two out of it
    read = sglang_source.sampling_params()(max_new_tokens=sent.pop("max_tokens"), **sent)
    assert (read.sampling_seed, read.temperature, read.stop_token_ids, read.max_new_tokens) == (7, 0.5, {2}, 9)


class OwnServer(Server):
    """One that Ray restarts; an answer of None: it is lost when it is asked."""

    lacks_weights = None
    loss: Exception = ActorUnavailableError("restarting", None)

    async def remote(self, **request: Any) -> ServerOutput:
        answer: Any = await super().remote(**request)
        if answer is None:
            raise self.loss
        return answer


class TheirServer(OwnServer):
    """One that Ray does not restart."""

    loss = ActorDiedError()

    def __getattribute__(self, name: str) -> Any:
        if name == "lacks_weights":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that passes only while the pool waits for a server."""
    clock = SimpleNamespace(now=0.0)

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(server_pool.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(server_pool.asyncio, "sleep", sleep)
    return clock


async def test_a_request_to_a_lost_server_is_repeated_when_it_is_back(clock: SimpleNamespace) -> None:
    server: Any = OwnServer(part([5], 3), None, None, part([6, 2], 4, "completed"))  # type: ignore[arg-type]
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=9, stop_token_ids=(2,)), session="a")
    assert server.asked == [([1], 9), ([1, 5], 8), ([1, 5], 8), ([1, 5], 8)], "it goes on from its tokens"
    assert (generation.token_ids, generation.swaps) == ([5, 6, 2], ((1, 4),))


async def test_it_goes_to_another_server_and_the_lost_one_gets_sessions_again_later(clock: SimpleNamespace) -> None:
    whole = part([2], 3, "completed")
    lost: Any = OwnServer(None, whole, whole)  # type: ignore[arg-type]
    other: Any = OwnServer(*[whole] * 9)
    pool = ServerPool([lost, other])

    async def play(session: str) -> None:
        await pool.generate([1], Sampling(), session=session)

    await asyncio.create_task(play("a"))
    await asyncio.create_task(play("b"))
    assert (len(lost.asked), len(other.asked)) == (1, 2)
    assert clock.now == 0, "nobody waited"
    clock.now += 11
    await asyncio.create_task(play("c"))
    assert (len(lost.asked), len(other.asked)) == (2, 2)


async def test_one_whose_node_is_lost_is_never_asked_again(clock: SimpleNamespace) -> None:
    whole = part([2], 3, "completed")
    lost: Any = OwnServer(None)  # type: ignore[arg-type]
    lost.loss = ActorUnschedulableError("The node specified via NodeAffinitySchedulingStrategy doesn't exist any more")
    pool = ServerPool([lost, Server(*[whole] * 3)])
    for session in "abc":
        assert (await asyncio.create_task(pool.generate([1], Sampling(), session=session))).token_ids == [2]
        clock.now += 60
    assert len(lost.asked) == 1


@pytest.mark.parametrize("server", [TheirServer(None), OwnServer(*[None] * 1000)])  # type: ignore[arg-type]
async def test_a_server_that_does_not_come_back_fails_the_request(server: Any, clock: SimpleNamespace) -> None:
    with pytest.raises(EngineFailure, match=r"Rollout server 0 was lost: Actor(Died|Unavailable)Error"):
        await ServerPool([server]).generate([1], Sampling(), session="a")
    assert clock.now == (0 if len(server.asked) == 1 else pytest.approx(300, abs=1))


async def test_a_request_that_ran_for_long_goes_to_another_server_too(clock: SimpleNamespace) -> None:
    class Slow(TheirServer):
        async def remote(self, **request: Any) -> ServerOutput:
            clock.now += 400
            return await super().remote(**request)

    lost: Any = Slow(None)  # type: ignore[arg-type]
    generation = await ServerPool([lost, Server(part([2], 3, "completed"))]).generate([1], Sampling(), session="a")
    assert generation.token_ids == [2]


async def test_a_server_that_is_only_out_of_reach_is_waited_for(clock: SimpleNamespace) -> None:
    server: Any = TheirServer(None, part([2], 3, "completed"))  # type: ignore[arg-type]
    server.loss = ActorUnavailableError("no route to host", None)
    assert (await ServerPool([server]).generate([1], Sampling(), session="a")).token_ids == [2]
