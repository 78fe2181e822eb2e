"""Sends weights from the trainer to rollout servers on other CPUs, over gloo: verl's own checkpoint engines need GPUs.

verl makes one in each rank of the trainer, and one in a process beside each rollout server.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import FileStore, PrefixStore, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from turnsmith.inference.weights import BUCKET_BYTES
from turnsmith.trainer.config.to_verl import GLOO_ENGINE

_TRANSFER_SECONDS = 300.0
_TIMEOUT = timedelta(seconds=_TRANSFER_SECONDS)
_Weights = list[tuple[str, torch.Tensor]]


@CheckpointEngineRegistry.register(GLOO_ENGINE)
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcasts weights from rank 0 of the trainer. A group is made for each transfer: servers may be new."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_bytes = min(bucket_size, BUCKET_BYTES)
        self._is_master = is_master
        self._rank, self._round = -1, 0
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> dict[str, Any]:
        """Where the members of the next group meet; only rank 0 of the trainer knows."""
        if not self._is_master:
            return {}
        self._round += 1
        ranks = os.environ.get("DIST_INIT_METHOD", "")
        if ranks.startswith("file://"):  # on one machine, as `private_variables` says
            return {"file": f"{ranks.removeprefix('file://')}-weights-{self._round}"}
        host = ray.util.get_node_ip_address()
        if self._store is None:
            self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        return {"address": (host, self._store.port), "round": self._round}

    @classmethod
    def build_topology(
        cls, trainer_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The arguments of `init_process_group`, for the ranks of the trainer and for the rollout servers."""
        size = 1 + rollout_world_size

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "size": [size] * len(ranks), "meeting": [metadata[0]] * len(ranks)}

        return arguments([0] + [-1] * (trainer_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, meeting: dict[str, Any]) -> None:
        """Join the group of the next transfer; a rank below 0 does not."""
        self._rank = rank
        if rank < 0:
            return
        if "file" in meeting:
            store: Any = FileStore(meeting["file"], size)
        else:
            if self._store is None:
                self._store = TCPStore(*meeting["address"], is_master=False, timeout=_TIMEOUT)
            store = PrefixStore(f"round-{meeting['round']}", self._store)
        self._group = ProcessGroupGloo(store, rank, size, _TIMEOUT)

    def finalize(self) -> None:
        """Leave the group."""
        self._group = None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send all weights. Each is gathered from all ranks of the trainer, so every rank iterates over them."""
        bucket: _Weights = []
        size = 0
        for name, tensor in weights:
            if self._rank < 0:
                continue
            bucket.append((name, tensor.detach().cpu().contiguous()))
            size += tensor.nbytes
            if size >= self._bucket_bytes:
                await asyncio.to_thread(self._send, bucket, False)
                bucket, size = [], 0
        if self._rank == 0:
            await asyncio.to_thread(self._send, bucket, True)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """All weights, in the order in which they are sent."""
        is_last = False
        while not is_last:
            bucket, is_last = await asyncio.to_thread(self._receive)
            for name, tensor in bucket:
                yield name, tensor

    def _send(self, bucket: _Weights, is_last: bool) -> None:
        shapes = [(name, tensor.shape, str(tensor.dtype).removeprefix("torch.")) for name, tensor in bucket]
        layout = json.dumps([shapes, is_last]).encode()
        self._broadcast(torch.tensor([len(layout)]))
        self._broadcast(torch.frombuffer(bytearray(layout), dtype=torch.uint8))
        for _, tensor in bucket:
            self._broadcast(tensor)

    def _receive(self) -> tuple[_Weights, bool]:
        length = self._broadcast(torch.zeros(1, dtype=torch.long))
        layout = self._broadcast(torch.zeros(int(length), dtype=torch.uint8))
        shapes, is_last = json.loads(layout.numpy().tobytes())
        empty = [(name, torch.empty(shape, dtype=getattr(torch, dtype))) for name, shape, dtype in shapes]
        return [(name, self._broadcast(tensor)) for name, tensor in empty], is_last

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel():
            self._group.broadcast(tensor.view(-1).view(torch.uint8), root=0).wait()
        return tensor
