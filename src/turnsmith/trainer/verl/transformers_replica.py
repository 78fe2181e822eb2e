"""How verl starts the `transformers` rollout server, and sends weights to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from turnsmith.inference.weights import BUCKET_BYTES
from turnsmith.trainer.verl.lost_and_joined_servers import SERVER_LOST, is_gone, unless_lost
from turnsmith.trainer.verl.transformers_server import server_name, start_server


class TransformersReplica(RolloutReplica):
    """Starts one server per replica; on a CPU a replica is one FSDP2 rank, or has a slot of its own."""

    async def launch_servers(self) -> None:
        """Start the server on the node of the process that sends it weights."""
        rank: Any = self.workers[0]
        node_id = await rank.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())
        server = start_server(
            self.replica_rank,
            node_id,
            model_path=self.model_config.path,
            dtype=self.config.dtype,
            max_concurrency=self.config.max_num_seqs,
            trust_remote_code=self.model_config.trust_remote_code,
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"ray:{server_name(self.replica_rank)}"

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Pause the server's requests. A lost server has none, and waits for weights after its restart."""
        with suppress(*SERVER_LOST):
            await super().abort_all_requests(reject_request=reject_request)

    async def resume_generation(self) -> None:
        """Continue the paused requests. A server that is only out of reach is called again, or it would stay paused."""
        await unless_lost(super().resume_generation, partial(is_gone, server_name(self.replica_rank)))

    async def sleep(self) -> None:
        """Nothing to free, also not on a server that is being restarted."""

    async def wake_up(self) -> None:
        """Nothing was freed."""

    async def release_kv_cache(self) -> None:
        """Nothing to free."""

    async def resume_kv_cache(self) -> None:
        """Nothing was freed."""


class TransformersAdapter(BaseRollout):
    """Runs in the trainer process, or beside the server, and sends new weights to it."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        self.replica_rank = rank if replica_rank == -1 else replica_rank
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        """Nothing to do: a server keeps its weights."""

    async def release(self) -> None:
        """Nothing to do: a server keeps its weights."""

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Send all weights in buckets through Ray's shared memory; the last one carries the version."""
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        stream = ensure_async_iterator(weights)  # plain from a rank, asynchronous from a checkpoint engine
        try:
            async for bucket, is_last in _buckets(stream):
                await self._server.load_weights.remote(bucket, global_steps if is_last else None)
        except SERVER_LOST:
            async for _ in stream:  # all ranks gather each one, so stopping early would block the others
                pass
            raise


async def _buckets(
    weights: AsyncIterator[tuple[str, torch.Tensor]],
) -> AsyncIterator[tuple[list[tuple[str, torch.Tensor]], bool]]:
    """Weights in buckets of bounded size, and whether a bucket is the last one."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    async for name, tensor in weights:
        bucket.append((name, tensor.detach().cpu()))
        size += tensor.numel() * tensor.element_size()
        if size >= BUCKET_BYTES:
            yield bucket, False
            bucket, size = [], 0
    yield bucket, True
