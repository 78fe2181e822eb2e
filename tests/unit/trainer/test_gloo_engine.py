"""Weights over gloo, between threads of this process: every tensor arrives as it is, at every server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from turnsmith.trainer.verl.cpu.gloo_engine import GlooCheckpointEngine

WEIGHTS = {
    "matrix": torch.randn(7, 5),
    "half": torch.randn(11, 3).to(torch.bfloat16),
    "transposed": torch.randn(4, 6).T,
    "counts": torch.arange(9),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
}


@pytest.fixture(params=["file", "address"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """On one machine the members of a group meet in a file, on a cluster at an address."""
    if request.param == "file":
        monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path}/ranks")
    else:
        monkeypatch.delenv("DIST_INIT_METHOD", raising=False)
    return str(request.param)


async def received(engine: GlooCheckpointEngine) -> list[tuple[str, torch.Tensor]]:
    return [pair async for pair in engine.receive_weights()]


def transfer(trainer: list[GlooCheckpointEngine], servers: list[GlooCheckpointEngine]) -> list[Any]:
    """What verl's CheckpointEngineManager does; returns what each server gets."""
    said = [engine.prepare() for engine in [*trainer, *servers]]
    groups = GlooCheckpointEngine.build_topology(len(trainer), len(servers), said)
    engines = [*trainer, *servers]
    arguments = [
        {name: values[place] for name, values in theirs.items()}
        for theirs, count in zip(groups, (len(trainer), len(servers)), strict=True)
        for place in range(count)
    ]
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(lambda pair: pair[0].init_process_group(**pair[1]), zip(engines, arguments, strict=True)))
        sent = [pool.submit(asyncio.run, engine.send_weights(WEIGHTS.items(), 1)) for engine in trainer]
        got = [pool.submit(asyncio.run, received(engine)) for engine in servers]
        arrived = [one.result() for one in got]
        for one in sent:
            one.result()
    for engine in engines:
        engine.finalize()
    return arrived


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 30])
def test_every_server_gets_every_tensor(bucket_bytes: int, meeting: str) -> None:
    trainer = [GlooCheckpointEngine(bucket_bytes, is_master=rank == 0) for rank in range(2)]
    servers = [GlooCheckpointEngine(bucket_bytes) for _ in range(2)]
    for _ in range(2):  # a group for each transfer
        for arrived in transfer(trainer, servers):
            assert [name for name, _ in arrived] == list(WEIGHTS)
            for name, tensor in arrived:
                assert tensor.dtype == WEIGHTS[name].dtype
                assert tensor.shape == WEIGHTS[name].shape
                assert torch.equal(tensor, WEIGHTS[name])


def test_a_server_that_is_new_takes_part_in_the_next_transfer(meeting: str) -> None:
    trainer, old = [GlooCheckpointEngine(100, is_master=True)], GlooCheckpointEngine(100)
    transfer(trainer, [old])
    first, second = transfer(trainer, [old, GlooCheckpointEngine(100)])
    assert all(torch.equal(ours, theirs) for (_, ours), (_, theirs) in zip(first, second, strict=True))
