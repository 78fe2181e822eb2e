"""verl's vLLM servers, any of which may be lost: the run continues with the others.

vLLM's engine core or one of its workers may die alone. Then the server's own process ends as well, so that a lost
server has one sign for everybody: its Ray actor is gone. It is not restarted: its episodes continue on other servers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.rollout.utils import ensure_async_iterator
from verl.workers.rollout.vllm_rollout import vllm_rollout
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from turnsmith.errors import EngineFailure, TrainingFailure
from turnsmith.inference.engines.vllm_process import answer_of
from turnsmith.inference.weights import check_arrived
from turnsmith.trainer.verl.lost_and_joined_servers import is_gone, unless_lost

_LOOK_SECONDS = 0.5
_NOT_STARTED = "initialization failed"
"""vLLM's message when one of its processes ends before it is ready; only that process printed the reason."""
_NO_REASONS = (_NOT_STARTED, "stack trace above", "RuntimeError: cancelled")
_ERROR = re.compile(r"\b[A-Za-z][\w.]*(?:Error|Exception): .+")
_READ_BYTES = 2**18
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Any]])


def why_not_started(output: str) -> str:
    """Why an engine did not start, from the output of its processes.

    Example:
        >>> why_not_started("(EngineCore pid=7) ERROR [core.py:9] ValueError: The model needs more memory.\\n")
        "vLLM's engine did not start: ValueError: The model needs more memory"
        >>> why_not_started("")
        "vLLM's engine was lost while it started: killed, or out of memory"
    """
    errors = [line for line in _ERROR.findall(output) if not any(text in line for text in _NO_REASONS)]
    if not errors:
        return "vLLM's engine was lost while it started: killed, or out of memory"
    return f"vLLM's engine did not start: {errors[-1].strip().rstrip('.')}"


def _own_output() -> str:
    """The end of the output of this process and its children, which Ray keeps in files."""
    parts: list[str] = []
    for stream in (Path("/proc/self/fd/1"), Path("/proc/self/fd/2")):
        if stream.is_file():
            with stream.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
                parts.append(file.read().decode(errors="replace"))
    return "\n".join(parts)


class VllmServer(vLLMHttpServer):
    """verl's server, which ends with its engine, and refuses weights that are not complete."""

    _unchecked = 2
    """Updates to check: the first weights, and the first adapter if there is one."""

    async def run_server(self, args: Any) -> None:
        """Start the engine and the HTTP server, and watch the engine.

        Raises:
            TrainingFailure: The engine did not start; says why.
        """
        try:
            await answer_of(super().run_server(args), lambda: not multiprocessing.active_children())
        except (RuntimeError, EngineFailure) as error:
            if isinstance(error, RuntimeError) and _NOT_STARTED not in str(error):
                raise
            raise TrainingFailure(why_not_started(_own_output())) from error
        self._watch = asyncio.create_task(self._end_with_the_engine())

    def _get_worker_extension_cls(self) -> str:
        return "turnsmith.trainer.verl.vllm_worker.VllmWorker"

    async def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> None:
        """Call a method of all workers.

        Raises:
            TrainingFailure: These were the first weights, and some parameters got none.
        """
        await super().collective_rpc(method, *args, **kwargs)
        if method == "update_weights_from_ipc" and self._unchecked:
            self._unchecked -= 1
            missing = await self.engine.collective_rpc("turnsmith_missing_weights")
            check_arrived("vLLM", sorted({name for worker in missing for name in worker}))

    async def _end_with_the_engine(self) -> None:
        while not self.engine.errored:
            await asyncio.sleep(_LOOK_SECONDS)
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)


def _if_there(method: _Method) -> _Method:
    """A method of verl's replica that does nothing if the server is lost."""

    @wraps(method)
    async def call(replica: VllmReplica, *args: Any, **kwargs: Any) -> Any:
        return await unless_lost(partial(method, replica, *args, **kwargs), replica.is_lost)

    return cast("_Method", call)


class VllmReplica(vLLMReplica):
    """verl's replica, which does nothing once its server is lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(VllmServer)

    def is_lost(self) -> bool:
        """Whether the server is lost, or a part of it on another node."""
        prefix = f"{self._get_server_name_prefix()}server_{self.replica_rank}"
        return any(is_gone(f"{prefix}_{node}{self.name_suffix}") for node in range(self.nnodes))

    wake_up = _if_there(vLLMReplica.wake_up)
    sleep = _if_there(vLLMReplica.sleep)
    abort_all_requests = _if_there(vLLMReplica.abort_all_requests)
    resume_generation = _if_there(vLLMReplica.resume_generation)
    clear_kv_cache = _if_there(vLLMReplica.clear_kv_cache)
    release_kv_cache = _if_there(vLLMReplica.release_kv_cache)
    resume_kv_cache = _if_there(vLLMReplica.resume_kv_cache)


class VllmAdapter(vllm_rollout.ServerAdapter):
    """Runs in each trainer process, or beside the server, and sends new weights to it until it is lost."""

    async def resume(self, tags: list[str]) -> None:
        """Let the server allocate its memory again."""
        await unless_lost(partial(super().resume, tags), self._is_lost)

    async def release(self) -> None:
        """Let the server free its memory."""
        await unless_lost(super().release, self._is_lost)

    async def update_weights(
        self, weights: Any, global_steps: int | None = None, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        """Send all weights to the server, or read them without sending if it is lost."""
        failures: list[TrainingFailure] = []
        family = self.model_config.hf_config.model_type
        stream = _until_failure(_unfused(ensure_async_iterator(weights), family), failures)
        if not self._is_lost():
            send = partial(self._send, stream, failures, global_steps, kwargs)
            await unless_lost(send, self._is_lost, once=True)
        async for _ in stream:  # all ranks gather each one, so stopping early would block the others
            pass
        if failures:
            raise failures[0]

    async def _send(self, stream: Any, failures: list[TrainingFailure], version: int | None, more: Any) -> None:
        # As verl's, which cannot be given a sender; its own would wait for ever for a killed process.
        load = {**more, "use_shm": self.use_shm}
        loaded = await self._execute_method("update_weights_from_ipc", non_block=True, kwargs=load)
        size = self.config.checkpoint_engine.update_weights_bucket_megabytes
        await _Sender(self.zmq_handle, size, self.use_shm, is_lost=self._is_lost).async_send_weights(stream)
        if loaded is not None:
            await loaded
        if self._has_server and not failures:
            await self.server_handle.clear_kv_cache.remote()
            if version is not None:
                await self.server_handle.set_global_steps.remote(version)

    def _is_lost(self) -> bool:
        return is_gone(f"{self._get_server_name_prefix()}server_{self.replica_rank}_{self.node_rank}")


async def _unfused(weights: AsyncIterator[tuple[str, Any]], family: str) -> AsyncIterator[tuple[str, Any]]:
    """Weights by the names that vLLM knows: verl sends experts fused if it has merged an adapter."""
    async for weight in weights:
        for part in unfuse_moe_params([weight], family):
            yield part


async def _until_failure(weights: AsyncIterator[Any], failures: list[TrainingFailure]) -> AsyncIterator[Any]:
    """Weights that end where their transfer fails: vLLM would wait for ever for those that do not come."""
    try:
        async for weight in weights:
            yield weight
    except TrainingFailure as error:
        failures.append(error)


class _Sender(BucketedWeightSender):
    """verl's sender of weights, which stops waiting for a server that is lost."""

    def __init__(self, *args: Any, is_lost: Callable[[], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_lost = is_lost

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = _Socket(self.socket, self._is_lost)


class _Socket:
    """A ZeroMQ socket whose `recv` raises ConnectionError once the other side is lost."""

    def __init__(self, socket: Any, is_lost: Callable[[], bool]) -> None:
        self._socket = socket
        self._is_lost = is_lost
        self.send_pyobj = socket.send_pyobj

    def recv(self) -> bytes:
        while not self._socket.poll(1000 * _LOOK_SECONDS):
            if self._is_lost():
                raise ConnectionError("The rollout server was lost while it received weights.")
        return self._socket.recv()

    def close(self) -> None:
        self._socket.close(linger=0)
