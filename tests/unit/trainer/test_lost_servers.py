"""A call to a rollout server that is lost does nothing, and one to a server that is only out of reach is repeated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from turnsmith.errors import TrainingFailure
from turnsmith.trainer.verl import lost_and_joined_servers
from turnsmith.trainer.verl import transformers_replica as replica_module
from turnsmith.trainer.verl.lost_and_joined_servers import unless_lost
from turnsmith.trainer.verl.transformers_replica import TransformersReplica

OUT_OF_REACH = ActorUnavailableError("no route to host", None)


class EngineDeadError(Exception):
    """As vLLM's."""


ENGINE_DIED = RayTaskError("sleep", "", EngineDeadError())


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that passes only while a call waits."""
    clock = SimpleNamespace(now=0.0)

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(lost_and_joined_servers.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(lost_and_joined_servers.asyncio, "sleep", sleep)
    return clock


class Call:
    """Raises or returns the next of its results."""

    def __init__(self, *results: Any) -> None:
        self.results, self.made = list(results), 0

    async def __call__(self, *unused: Any) -> Any:
        self.made += 1
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


@pytest.mark.parametrize("error", [ENGINE_DIED, ActorDiedError(), OutOfMemoryError("killed"), ConnectionError()])
async def test_a_server_that_is_lost_or_ends_has_nothing_to_do(error: Exception, clock: SimpleNamespace) -> None:
    call = Call(error)
    assert await unless_lost(call, lambda: clock.now >= (3 if error is ENGINE_DIED else 0)) is None
    assert call.made == 1


async def test_an_error_of_a_server_that_stays_is_raised(clock: SimpleNamespace) -> None:
    with pytest.raises(RayTaskError):
        await unless_lost(Call(ENGINE_DIED), lambda: False)
    assert clock.now == pytest.approx(10, abs=1)


async def test_a_server_that_says_why_the_run_has_to_stop_is_believed(clock: SimpleNamespace) -> None:
    told = RayTaskError("collective_rpc", "", TrainingFailure("nothing came for lm_head")).as_instanceof_cause()
    with pytest.raises(TrainingFailure):
        await unless_lost(Call(told), lambda: False, once=True)
    assert clock.now == 0


async def test_one_that_is_out_of_reach_is_called_again(clock: SimpleNamespace) -> None:
    assert await unless_lost(Call(OUT_OF_REACH, OUT_OF_REACH, "done"), lambda: False) == "done"
    with pytest.raises(ActorUnavailableError):
        await unless_lost(Call(*[OUT_OF_REACH] * 1000), lambda: False)
    assert clock.now == pytest.approx(301, abs=1)


async def test_a_call_that_cannot_be_repeated_is_not(clock: SimpleNamespace) -> None:
    call = Call(OUT_OF_REACH, "done")
    with pytest.raises(ActorUnavailableError):
        await unless_lost(call, lambda: False, once=True)
    assert call.made == 1


async def test_a_paused_server_that_was_out_of_reach_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "is_gone", lambda name: False)
    resume = Call(OUT_OF_REACH, None)
    replica: Any = object.__new__(TransformersReplica)
    replica.replica_rank, replica.servers = 0, [SimpleNamespace(resume_generation=SimpleNamespace(remote=resume))]
    await replica.resume_generation()
    assert resume.made == 2
