"""Sends weights from the trainer to rollout servers on other devices, over torch's process groups: NCCL or gloo.

verl makes one engine in each rank of the trainer, and one in a process beside each rollout server. It is the same class
on a CPU and on GPUs, so that what the tests on a CPU show of lost and joined servers holds for GPUs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import ray
import torch
from torch import distributed
from torch.distributed import FileStore, PrefixStore, TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id, get_torch_device

from turnsmith.errors import TrainingFailure
from turnsmith.inference.weights import BUCKET_BYTES
from turnsmith.trainer.config.to_verl import CHECKPOINT_ENGINE

_POLL_SECONDS = 0.0005
_Weights = list[tuple[str, torch.Tensor]]
_Result = TypeVar("_Result")


@CheckpointEngineRegistry.register(CHECKPOINT_ENGINE)
class TorchCheckpointEngine(CheckpointEngine):
    """Broadcasts weights from rank 0 of the trainer, in a group that is made anew when its members change.

    Args:
        bucket_size: How many bytes verl would send at once.
        is_master: This is rank 0 of the trainer.
        torch_backend: torch's name of the backend, `nccl` or `gloo`.
        seconds: How long a message may take.
    """

    def __init__(
        self, bucket_size: int, is_master: bool = False, torch_backend: str = "gloo", seconds: float = 120.0
    ) -> None:
        self._bucket_bytes = min(bucket_size, BUCKET_BYTES)
        self._is_master, self._backend = is_master, torch_backend
        self._seconds, self._timeout = seconds, timedelta(seconds=seconds)
        self._device: Any = "cpu" if torch_backend == "gloo" else get_device_id()
        self._place: tuple[str, int, int] | None = None
        """The name of the group, this process's rank in it and its size; None without a group that works."""
        self._store: Any = None
        self._group: Any = None

    def prepare(self) -> dict[str, Any]:
        """The group that this process is in, and where the next one would meet; only rank 0 of the trainer knows."""
        if not self._is_master:
            return {"place": self._place}
        name = uuid.uuid4().hex
        ranks = os.environ.get("DIST_INIT_METHOD", "")
        if ranks.startswith("file://"):  # on one machine, as `private_variables` says
            return {"place": self._place, "name": name, "file": f"{ranks.removeprefix('file://')}-weights-{name}"}
        host = ray.util.get_node_ip_address()
        if self._store is None:
            self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
        return {"place": self._place, "name": name, "address": (host, self._store.port)}

    @classmethod
    def build_topology(
        cls, trainer_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """The arguments of `init_process_group`, for the ranks of the trainer and for the rollout servers."""
        size = 1 + rollout_world_size
        found = [metadata[0]["place"], *[one["place"] for one in metadata[trainer_world_size:]]]
        is_unchanged = found[0] is not None and found == [(found[0][0], rank, size) for rank in range(size)]
        meeting = None if is_unchanged else metadata[0]

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "size": [size] * len(ranks), "meeting": [meeting] * len(ranks)}

        return arguments([0] + [-1] * (trainer_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, meeting: dict[str, Any] | None) -> None:
        """Join the group that meets there, or keep the one there is; a rank below 0 is in none."""
        if rank < 0 or meeting is None:
            return
        self._leave()
        if "file" in meeting:
            store: Any = FileStore(meeting["file"], size)
            store.set_timeout(self._timeout)
        else:
            if self._store is None:
                self._store = TCPStore(*meeting["address"], is_master=False, timeout=self._timeout)
            store = PrefixStore(meeting["name"], self._store)
        self._group = _new_group(self._backend, store, rank, size, self._timeout)
        self._place = (meeting["name"], rank, size)

    def finalize(self) -> None:
        """Keep the group for the next transfer, and no memory."""
        get_torch_device().empty_cache()

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send all weights. Each is gathered from all ranks of the trainer, so every rank iterates over all of them.

        Raises:
            TrainingFailure: Not every server got them.
        """
        left = iter(weights)
        try:
            is_last = not self._is_master
            while not is_last:
                bucket, is_last = self._next_bucket(left)
                await self._in_time(partial(self._send, bucket, is_last))
        except BaseException:
            self._leave()
            raise
        finally:
            for _ in left:
                pass

    def _next_bucket(self, left: Iterator[tuple[str, torch.Tensor]]) -> tuple[_Weights, bool]:
        """The next weights of about `bucket_size`, and whether they are the last ones."""
        bucket: _Weights = []
        size = 0
        for name, tensor in left:
            bucket.append((name, tensor.detach().to(self._device).contiguous()))
            size += tensor.nbytes
            if size >= self._bucket_bytes:
                return bucket, False
        return bucket, True

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """All weights, in the order in which they are sent; those of the last bucket once every server has them all.

        Raises:
            TrainingFailure: They stopped coming.
        """
        is_last = False
        try:
            while not is_last:
                bucket, is_last = await self._in_time(self._receive)
                for name, tensor in bucket:
                    yield name, tensor
        except BaseException:  # also if whoever wanted them stops in between: the others would wait
            self._leave()
            raise

    async def _in_time(self, part: Callable[[], _Result]) -> _Result:
        """Do a part of the transfer in a thread. If it fails or takes too long, the group is over for all members."""
        try:
            # torch ends a message after `seconds`, but waits longer where NCCL's processes meet for the first time.
            return await asyncio.wait_for(asyncio.to_thread(part), 2 * self._seconds)
        except (RuntimeError, TimeoutError) as error:
            reason = str(error).partition(". ")[0].partition("\n")[0] or "it hangs"
            traceback.clear_frames(error.__traceback__)  # they would keep connections open, by whose end others notice
        self._leave()
        raise TrainingFailure(
            "The transfer of weights to the rollout servers failed: one of its processes was lost, or did not answer "
            f"for {self._seconds:g} s ({reason})."
        )

    def _leave(self) -> None:
        group, self._group, self._place = self._group, None, None
        if group is not None:
            group.abort()

    def _send(self, bucket: _Weights, is_last: bool) -> None:
        shapes = [(name, tensor.shape, str(tensor.dtype).removeprefix("torch.")) for name, tensor in bucket]
        layout = json.dumps([shapes, is_last]).encode()
        self._broadcast(torch.tensor([len(layout)]))
        self._broadcast(torch.frombuffer(bytearray(layout), dtype=torch.uint8))
        for _, tensor in bucket:
            self._broadcast(tensor)
        self._agree(is_last)

    def _receive(self) -> tuple[_Weights, bool]:
        length = self._broadcast(torch.zeros(1, dtype=torch.long))
        layout = self._broadcast(torch.zeros(int(length), dtype=torch.uint8))
        shapes, is_last = json.loads(layout.cpu().numpy().tobytes())
        received: _Weights = []
        for name, shape, dtype in shapes:
            empty = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
            received.append((name, self._broadcast(empty)))
        self._agree(is_last)
        return received, is_last

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(self._device)
        if tensor.numel():
            self._wait(self._group.broadcast(tensor.view(-1).view(torch.uint8), root=0))
        return tensor

    def _agree(self, is_last: bool) -> None:
        """After the last bucket, all members wait until all have it: else some would fail and others not."""
        if is_last:
            self._wait(self._group.allreduce(torch.zeros(1, device=self._device)))

    def _wait(self, work: Any) -> None:
        # `wait` of NCCL returns before the GPU is done; this is the same for both.
        while not work.is_completed():
            time.sleep(_POLL_SECONDS)
        work.wait()


def _new_group(backend: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    if backend == "gloo":
        return distributed.ProcessGroupGloo(store, rank, size, timeout)
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    # 2: an error ends the group. By default it would end the process, which for a lost server is the trainer.
    with patch.dict(os.environ, TORCH_NCCL_ASYNC_ERROR_HANDLING="2"):
        return distributed.ProcessGroupNCCL(store, rank, size, options)
