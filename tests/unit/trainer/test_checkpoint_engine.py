"""Weights between threads of this process: every tensor arrives as it is, at every server, also when servers change.

On `cuda` the engine is configured as on GPUs, and only torch's own class for NCCL is another one.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from verl.checkpoint_engine.base import CheckpointEngineRegistry

from turnsmith import ConfigStore
from turnsmith.errors import TrainingFailure
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.verl import checkpoint_engine
from turnsmith.trainer.verl.checkpoint_engine import TorchCheckpointEngine

WEIGHTS = {
    "matrix": torch.randn(7, 5),
    "half": torch.randn(11, 3).to(torch.bfloat16),
    "transposed": torch.randn(4, 6).T,
    "counts": torch.arange(9),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
}
PLACE = "actor_rollout_ref.rollout.checkpoint_engine"
Make = Callable[..., TorchCheckpointEngine]


class InPlaceOfNCCL:
    """torch's class for NCCL, which its build for CPUs does not have: called alike, over gloo."""

    class Options:
        _timeout = timedelta(minutes=10)

    handled: ClassVar = set[str | None]()

    def __new__(cls, store: Any, rank: int, size: int, options: Options) -> Any:
        cls.handled.add(os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        return torch.distributed.ProcessGroupGloo(store, rank, size, options._timeout)


def settings(device: str) -> dict[str, Any]:
    """verl's settings of weight transfers with `training.schedule=separate_async` on a device."""
    config = ConfigStore()
    config.model.device, config.training.schedule = device, "separate_async"
    config.ray.gpus_per_node, config.ray.rollout_gpus_per_node = 1, 2
    return {name: value for name, value in keys_we_set(config).items() if PLACE in name}


@pytest.fixture(params=["cpu", "cuda"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes engines as verl's workers do, by the settings of a device."""
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", InPlaceOfNCCL, raising=False)
    monkeypatch.setattr(checkpoint_engine, "get_device_id", lambda: "cpu")
    keys = settings(request.param)
    name = keys[f"{PLACE}.backend"]
    kwargs = {"torch_backend": keys[f"+{PLACE}.engine_kwargs.{name}.torch_backend"], "seconds": 20.0}
    return partial(CheckpointEngineRegistry.new, name, **kwargs)


@pytest.fixture(params=["file", "address"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """On one machine the members of a group meet in a file, on a cluster at an address."""
    if request.param == "file":
        monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path}/ranks")
    else:
        monkeypatch.delenv("DIST_INIT_METHOD", raising=False)
    return str(request.param)


def test_a_gpu_has_the_engine_of_a_cpu_but_for_the_name_of_the_backend() -> None:
    cpu, cuda = settings("cpu"), settings("cuda")
    assert {name: (cpu[name], cuda[name]) for name in {*cpu, *cuda} if cpu.get(name) != cuda.get(name)} == {
        f"+{PLACE}.engine_kwargs.turnsmith.torch_backend": ("gloo", "nccl")
    }
    importlib.import_module(cuda[f"{PLACE}.custom_backend_module"])
    assert CheckpointEngineRegistry.get(cuda[f"{PLACE}.backend"]) is TorchCheckpointEngine


def test_torch_has_what_nccl_is_called_with() -> None:
    """Its build for CPUs has only the stubs."""
    stubs = (Path(torch.__file__).parent / "_C" / "_distributed_c10d.pyi").read_text()
    found = stubs.partition("class ProcessGroupNCCL(Backend):")[2].partition("\nclass ")[0]
    assert "class Options(Backend.Options):" in found
    assert "store: Store,\n        rank: int,\n        size: int,\n        options: Options,\n" in found
    assert "def abort(self)" in found


async def received(engine: TorchCheckpointEngine) -> list[tuple[str, torch.Tensor]]:
    return [pair async for pair in engine.receive_weights()]


def meet(trainer: list[TorchCheckpointEngine], servers: list[TorchCheckpointEngine]) -> None:
    """The first half of what verl's CheckpointEngineManager does."""
    engines = [*trainer, *servers]
    groups = TorchCheckpointEngine.build_topology(len(trainer), len(servers), [one.prepare() for one in engines])
    arguments = [
        {name: values[place] for name, values in theirs.items()}
        for theirs, count in zip(groups, (len(trainer), len(servers)), strict=True)
        for place in range(count)
    ]
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(lambda pair: pair[0].init_process_group(**pair[1]), zip(engines, arguments, strict=True)))


def transfer(trainer: list[TorchCheckpointEngine], servers: list[TorchCheckpointEngine]) -> list[Any]:
    """What verl's CheckpointEngineManager does; returns what each server gets."""
    meet(trainer, servers)
    with ThreadPoolExecutor(len(trainer) + len(servers)) as pool:
        sent = [pool.submit(asyncio.run, engine.send_weights(WEIGHTS.items(), 1)) for engine in trainer]
        got = [pool.submit(asyncio.run, received(engine)) for engine in servers]
        arrived = [one.result() for one in got]
        for one in sent:
            one.result()
    for engine in [*trainer, *servers]:
        engine.finalize()
    return arrived


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 30])
def test_every_server_gets_every_tensor(bucket_bytes: int, meeting: str, make: Make) -> None:
    trainer = [make(bucket_size=bucket_bytes, is_master=rank == 0) for rank in range(2)]
    servers = [make(bucket_bytes) for _ in range(2)]
    groups: set[int] = set()
    for _ in range(3):
        for arrived in transfer(trainer, servers):
            assert [name for name, _ in arrived] == list(WEIGHTS)
            for name, tensor in arrived:
                assert tensor.dtype == WEIGHTS[name].dtype
                assert tensor.shape == WEIGHTS[name].shape
                assert torch.equal(tensor, WEIGHTS[name])
        groups |= {id(engine._group) for engine in [trainer[0], *servers]}
    assert len(groups) == 3, "with the same members each keeps its group"
    assert trainer[1]._group is None


def test_servers_that_come_and_go_take_part_in_the_next_transfer(meeting: str, make: Make) -> None:
    trainer, first, second, third = make(100, is_master=True), make(100), make(100), make(100)
    for servers in ([first], [first, second], [second], [second, third, first], [third, second]):
        arrived = transfer([trainer], servers)
        assert len(arrived) == len(servers)
        for weights in arrived:
            assert all(torch.equal(tensor, WEIGHTS[name]) for name, tensor in weights)
        places = [engine._place for engine in [trainer, *servers]]
        assert places[0] is not None
        assert places == [(places[0][0], rank, len(places)) for rank in range(len(places))]
    assert InPlaceOfNCCL.handled <= {"2"}, "an error of NCCL must not end the process"


def broken() -> Iterator[tuple[str, torch.Tensor]]:
    yield "counts", WEIGHTS["counts"]
    raise ValueError("no memory")


def test_a_rank_that_fails_to_gather_ends_the_transfer_for_all(meeting: str, make: Make) -> None:
    trainer, server = make(1, is_master=True), make(1)
    meet([trainer], [server])
    with ThreadPoolExecutor(2) as pool:
        sent = pool.submit(asyncio.run, trainer.send_weights(broken()))
        got = pool.submit(asyncio.run, received(server))
        with pytest.raises(ValueError, match="no memory"):
            sent.result()
        with pytest.raises(TrainingFailure, match="one of its processes was lost"):
            got.result(timeout=15)
    assert len(transfer([trainer], [server])[0]) == len(WEIGHTS)


def test_a_server_that_stops_reading_ends_the_transfer_for_all(meeting: str, make: Make) -> None:
    async def read_one(engine: Any) -> None:
        async with aclosing(engine.receive_weights()) as weights:
            await anext(weights)

    trainer, server = make(1, is_master=True), make(1)
    meet([trainer], [server])
    with ThreadPoolExecutor(2) as pool:
        got = pool.submit(asyncio.run, read_one(server))
        with pytest.raises(TrainingFailure, match="one of its processes was lost"):
            asyncio.run(trainer.send_weights(WEIGHTS.items()))
        got.result()
    assert len(transfer([trainer], [server])[0]) == len(WEIGHTS)
