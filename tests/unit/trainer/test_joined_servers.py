"""Nodes that join get rollout servers, in the background; nodes that are lost are left out of a weight sync."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from turnsmith.errors import TrainingFailure
from turnsmith.trainer.verl import lost_and_joined_servers
from turnsmith.trainer.verl.lost_and_joined_servers import JoinedServers, LivingReplicas


class Replica:
    """Stands where verl's replica is."""

    broken = False

    def __init__(self, replica_rank: int, config: Any, model_config: Any, gpus_per_node: int) -> None:
        self.rank, self.resource_pool = replica_rank, SimpleNamespace(pgs=[f"group {replica_rank}"])

    async def init_standalone(self) -> None:
        if self.broken:
            raise RuntimeError("no model there")


class BrokenReplica(Replica):
    broken = True


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found = [node("first")]
    monkeypatch.setattr(lost_and_joined_servers.ray, "nodes", lambda: list(found))
    monkeypatch.setattr(lost_and_joined_servers.state, "available_resources_per_node", dict)
    return found


def node(name: str, gpus: int = 4, cpus: int = 9) -> dict[str, Any]:
    return {"NodeID": name, "Alive": True, "NodeManagerAddress": name, "Resources": {"GPU": gpus, "CPU": cpus}}


def joining(tensor_parallel: int = 2, replica: type = Replica) -> tuple[JoinedServers, list[str]]:
    config = SimpleNamespace(n_gpus_per_node=4, tensor_model_parallel_size=tensor_parallel)
    manager = SimpleNamespace(
        start_rank=0, rollout_replicas=[1, 2], rollout_config=config, model_config=None, rollout_replica_class=replica
    )
    told: list[str] = []
    return JoinedServers(manager, told.append), told


def look_until_told(servers: JoinedServers, told: list[str]) -> list[Any]:
    until, found = time.monotonic() + 10, list[Any]()
    while not told and time.monotonic() < until:
        found += servers.poll()
    assert not [one for one in threading.enumerate() if one.name == "joined-servers"], "it ends when they are up"
    return found


def test_a_new_node_gets_as_many_servers_as_the_others_and_once(nodes: list[dict[str, Any]]) -> None:
    servers, told = joining()
    assert servers.poll() == []
    nodes.append(node("second"))
    assert [one.rank for one in look_until_told(servers, told)] == [2, 3]
    assert told == ["The node second has joined; rollout servers that it brings: 2."]
    assert servers.poll() == []
    nodes.append(node("third"))
    told.clear()
    assert [one.rank for one in look_until_told(servers, told)] == [4, 5]


@pytest.mark.parametrize(("gpus", "cpus", "tensor_parallel"), [(3, 9, 2), (4, 8, 2), (4, 9, 8)])
def test_a_node_that_is_too_small_is_not_used(
    nodes: list[dict[str, Any]], gpus: int, cpus: int, tensor_parallel: int
) -> None:
    servers, told = joining(tensor_parallel)
    nodes.append(node("second", gpus, cpus))
    assert look_until_told(servers, told) == []
    assert "it is not used" in told[0]
    assert servers.poll() == []
    assert len(told) == 1


def test_servers_that_do_not_start_are_left_out(nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []
    monkeypatch.setattr(lost_and_joined_servers.ray.util, "remove_placement_group", freed.append)
    servers, told = joining(replica=BrokenReplica)
    nodes.append(node("second"))
    assert look_until_told(servers, told) == []
    assert told == ["The rollout servers of the new node second did not start: RuntimeError('no model there')"]
    assert freed == ["group 2", "group 3"]


class Receiver:
    """Stands where the process is that receives weights for a server: raises what it is told to, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.__ray_ready__ = SimpleNamespace(remote=self._answer)

    async def _answer(self) -> None:
        if self.errors:
            error = self.errors[0]
            if isinstance(error, ActorUnavailableError):
                self.errors.pop(0)
            raise error


class Receiving:
    """Stands where verl's replica is, with one process that receives its weights."""

    def __init__(self, rank: int, receiver: Receiver) -> None:
        self.servers, self.workers = [f"server {rank}"], [receiver]
        self.resource_pool = SimpleNamespace(pgs=[f"group {rank}"])


def manager_of(monkeypatch: pytest.MonkeyPatch, *receivers: Receiver, fails: list[Any] | None = None) -> LivingReplicas:
    manager = LivingReplicas.__new__(LivingReplicas)
    manager.replicas = [Receiving(rank, one) for rank, one in enumerate(receivers)]
    failing = fails or []

    async def transfer(self: LivingReplicas, version: int) -> dict[str, Any]:
        if failing:
            raise failing.pop(0)()
        return {"sent to": len(self.replicas)}

    monkeypatch.setattr(LivingReplicas, "_transfer", transfer)
    monkeypatch.setattr(lost_and_joined_servers, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lost_and_joined_servers.ray, "kill", lambda server: None)
    monkeypatch.setattr(lost_and_joined_servers.ray.util, "remove_placement_group", lambda group: None)
    return manager


def test_a_server_on_a_lost_node_gets_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_of(monkeypatch, Receiver(), Receiver(ActorDiedError()))
    ended: list[str] = []
    monkeypatch.setattr(lost_and_joined_servers.ray, "kill", ended.append)
    monkeypatch.setattr(lost_and_joined_servers.ray.util, "remove_placement_group", ended.append)
    assert manager.update_weights(3) == {"sent to": 1}
    assert ended == ["server 1", "group 1"], "old weights must not generate, and Ray must not search for ever"


def test_one_that_is_only_out_of_reach_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_of(monkeypatch, Receiver(), Receiver(*[ActorUnavailableError("no route", None)] * 3))
    assert manager.update_weights(3) == {"sent to": 2}


def test_weights_are_sent_again_if_a_node_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Receiver()

    def lose() -> Exception:
        second.errors = [ActorDiedError()]
        return ActorDiedError()

    assert manager_of(monkeypatch, Receiver(), second, fails=[lose]).update_weights(3) == {"sent to": 1}


def test_another_failure_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ActorDiedError):
        manager_of(monkeypatch, Receiver(), fails=[ActorDiedError]).update_weights(3)


def test_without_any_server_the_run_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingFailure, match="All nodes with rollout servers were lost"):
        manager_of(monkeypatch, Receiver(ActorDiedError())).update_weights(3)
