"""vLLM's own processes: calls to its engine, which may end before it answers, and the extension of its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from turnsmith.errors import EngineFailure
from turnsmith.inference.weights import read_weights

_POLL_SECONDS = 0.5
_Answer = TypeVar("_Answer")


async def answer_of(call: Coroutine[Any, Any, _Answer], has_ended: Callable[[], bool]) -> _Answer:
    """Wait for the answer to a call. If the engine has ended, vLLM 0.31 itself would wait for ever.

    Raises:
        EngineFailure: The engine has ended.
    """
    task = asyncio.create_task(call)
    try:
        while not (await asyncio.wait([task], timeout=_POLL_SECONDS))[0]:
            if has_ended():
                raise EngineFailure("vLLM's engine has ended: killed, or out of memory.")
        return await task
    finally:
        task.cancel()  # a cancelled wait cancels the call


class WeightLoader:
    """Mixed into vLLM's worker class through its setting `worker_extension_cls`."""

    def turnsmith_load_weights(self, folder: str, complete: bool) -> None:
        """Copy the weights in a folder over the model's.

        Uses `load_weights`, which copies in place: on a CPU, vLLM's own `reload_weights` silently leaves a tied output
        head at its old value. There, `load_weights` needs linear layers that kept their weights, which
        `trainer.verl.cpu.vllm` ensures in every vLLM process.

        Args:
            folder: Holds safetensors, under the names of the model's checkpoint.
            complete: Whether every weight of the model must be among them.
        """
        worker: Any = self
        if worker.model_config.quantization is not None:
            raise ValueError("the weights of a quantised model cannot be replaced in place")
        model = worker.get_model()
        loaded = model.load_weights(read_weights(folder))
        missing = {name for name, _ in model.named_parameters()} - loaded if complete and loaded is not None else set()
        if missing:
            raise ValueError(f"the new weights are incomplete: {min(missing)!r} is missing")
