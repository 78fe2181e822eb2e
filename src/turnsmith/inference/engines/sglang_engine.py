"""SGLang's `Engine` in this process, on the seam: token ids in and out, weights replaced in place.

Like vLLM it is bound to one event loop; here that is a loop in a thread of the engine's own. Written against sglang
0.5.12 and not run with it: see `sglang_shapes`.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Awaitable, Sequence
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

from turnsmith.errors import EngineFailure, MissingDependency
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.sglang_protocol import generate_request, read_generation, read_scores, score_request
from turnsmith.inference.weights import is_folder, read_weights
from turnsmith.loop_thread import LoopThread

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights


class SGLangEngine:
    """Generates with SGLang. Start a script that uses it under `if __name__ == "__main__":`, because SGLang's processes
    import the script again. When it is closed SGLang ends every child process of this one, also those of others.

    Args:
        model_path: A folder or a Hugging Face id.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: what the model was saved in.
        tensor_parallel_size: Over how many GPUs to split the model.
        max_model_len: Most tokens of one sequence, prompt and answer together; None: what the model can do.
        max_concurrency: Most sequences that are decoded together.
        gpu_memory_utilization: Share of each GPU's memory for weights and cache; None: SGLang chooses.
        trust_remote_code: Whether to run Python code that comes with the model.
    """

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        max_model_len: int | None = None,
        max_concurrency: int = 256,
        gpu_memory_utilization: float | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.weights_version = 0
        self._requests = count()
        self._sglang = _load_sglang()
        arguments = {
            "model_path": model_path,
            "dtype": dtype,
            "tp_size": tensor_parallel_size,
            "context_length": max_model_len,
            "max_running_requests": max_concurrency,
            "mem_fraction_static": gpu_memory_utilization,
            "trust_remote_code": trust_remote_code,
            # Token ids in and out: nothing to encode or decode.
            "skip_tokenizer_init": True,
        }
        self._tensor_parallel_size = tensor_parallel_size
        self._loop = LoopThread("sglang-engine")
        try:
            self._engine: Any = self._loop.run(self._start(arguments))
        except BaseException:
            self._loop.close()
            raise
        atexit.register(self.close)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; tokens that an earlier call had too come from SGLang's prefix cache."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        request = generate_request(list(prompt_ids), sampling)
        return read_generation(await self._loop.share(self._ask(request, session)), sampling)

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """The log-prob of each response token after the prompt, at temperature 1."""
        if not response_ids:
            return []
        request = score_request(list(prompt_ids), list(response_ids))
        return read_scores(await self._loop.share(self._ask(request, "score")), response_ids)

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Replace the model's weights. SGLang always lets the turns it is at end first, with the old weights, and then
        empties its prefix cache.

        Args:
            source: A folder of safetensors, which must hold all weights; or names and tensors, which may be some.
            version: What tokens that the new weights sample are marked with.
            drain: Makes no difference: SGLang always does.
        """
        types = import_module("sglang.srt.managers.io_struct")
        # Not `Engine`'s own methods of these names: they run the event loop, which here runs already.
        manager = self._engine.tokenizer_manager
        common = {"weight_version": str(version), "flush_cache": True}
        if is_folder(source):
            request = types.UpdateWeightFromDiskReqInput(model_path=str(source), **common)
            work = manager.update_weights_from_disk(request, None)
        else:
            serializer = import_module("sglang.srt.utils").MultiprocessingSerializer
            # The same bytes for each GPU: each takes its own part of them.
            packed = [serializer.serialize(list(read_weights(source)))] * self._tensor_parallel_size
            request = types.UpdateWeightsFromTensorReqInput(serialized_named_tensors=packed, **common)
            work = manager.update_weights_from_tensor(request, None)
        success, message = await self._loop.share(self._finish(work))
        if not success:
            raise EngineFailure(f"SGLang did not take the new weights: {message}")
        self.weights_version = version

    def close(self) -> None:
        """End SGLang's processes; whoever still waits for tokens gets an EngineFailure. Safe to call twice."""
        self._loop.close(last=self._engine.shutdown)
        atexit.unregister(self.close)

    async def _ask(self, request: dict[str, Any], session: str) -> Any:
        name = f"{session}/{next(self._requests)}"
        try:
            return await self._engine.async_generate(**request, rid=name)
        except asyncio.CancelledError:
            self._engine.tokenizer_manager.abort_request(name)
            raise
        except Exception as error:
            raise EngineFailure(f"SGLang could not generate: {type(error).__name__}: {error}") from error

    async def _finish(self, update: Awaitable[Any]) -> tuple[bool, str]:
        try:
            success, message = (await update)[:2]
        except Exception as error:
            raise EngineFailure(f"SGLang could not take new weights: {type(error).__name__}: {error}") from error
        return success, message

    async def _start(self, arguments: dict[str, Any]) -> Any:
        try:
            return self._sglang.Engine(**arguments)
        except Exception as error:
            raise EngineFailure(f"SGLang could not start: {type(error).__name__}: {error}") from error


def _load_sglang() -> Any:
    try:
        return import_module("sglang")
    except ImportError as error:
        raise MissingDependency(
            f"SGLang cannot be used here ({error}): pip install 'turnsmith[sglang]' on a GPU machine; no package "
            "index has its CPU kernel. For a server that runs elsewhere give its URL."
        ) from error
