"""The `transformers` engine: exact tokens, continuous batching, no extra install.

One thread decodes for any number of waiting coroutines. Everything that touches the model, weight updates and scoring
included, runs in that thread between two tokens, so no token or score comes from half-updated weights.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as IdSequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from turnsmith.concurrency.threads import shared_threads
from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.continuous_batch import ContinuousBatch, Sequence, check_model
from turnsmith.inference.weights import is_folder, read_weights

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights


@dataclass(frozen=True, slots=True)
class _Job:
    """A call to run in the decoding thread, between two tokens."""

    function: Callable[[], Any]
    future: Future[Any]
    drain: bool = False
    """Whether to wait until the sequences being decoded are finished."""

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except Exception as error:
            self.future.set_exception(error)


_Work = tuple[Sequence, "Future[None]"] | _Job


class TransformersEngine:
    """Generates with a Hugging Face model in this process, on the CPU.

    Example:
        >>> import asyncio
        >>> from turnsmith.inference.models import resolve
        >>> engine = TransformersEngine(resolve("tiny"), dtype="float32")
        >>> generation = asyncio.run(engine.generate([1, 2, 3], Sampling(max_tokens=4, seed=0), session="a"))
        >>> len(generation.token_ids) <= 4, len(generation.token_ids) == len(generation.log_probs)
        (True, True)
        >>> engine.close()
    """

    def __init__(
        self, model_path: str, *, dtype: str = "float32", max_concurrency: int = 256, trust_remote_code: bool = False
    ) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(
            model_path,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        ).eval()
        check_model(self.model)
        self.weights_version = 0
        self._vocab_size = int(self.model.get_input_embeddings().num_embeddings)
        self._max_concurrency = max_concurrency
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = False
        self._close_lock = threading.Lock()
        # Used by the decoding thread only.
        self._batch = ContinuousBatch(self.model)
        self._queued: deque[Sequence] = deque()
        self._futures: dict[int, Future[None]] = {}
        self._draining: deque[_Job] = deque()
        self._cache_is_stale = False
        self._paused = False
        self._thread = threading.Thread(target=self._decode, name="transformers-engine", daemon=True)
        self._thread.start()

    async def generate(self, prompt_ids: IdSequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`. `session` is ignored: nothing is cached between turns."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        # Checked here, because in the model it would fail the whole batch.
        if min(prompt_ids) < 0 or max(prompt_ids) >= self._vocab_size:
            raise EngineFailure(f"The prompt holds a token id outside the model's vocabulary of {self._vocab_size}.")
        sequence = Sequence(list(prompt_ids), sampling)
        future: Future[None] = Future()
        self._submit((sequence, future))
        await asyncio.wrap_future(future)
        return Generation(
            sequence.token_ids,
            sequence.log_probs,
            sequence.stop_reason,
            sequence.weights_version,
            swaps=tuple(sequence.swaps),
        )

    async def score(self, prompt_ids: IdSequence[int], response_ids: IdSequence[int]) -> list[float]:
        """Log-prob of each response token given the prompt, at temperature 1."""
        if not response_ids:
            return []
        return await asyncio.wrap_future(self._submit_call(lambda: self._score(list(prompt_ids), list(response_ids))))

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Replace the model's weights while requests are in flight, without losing any.

        Atomic: if this raises, no weight has changed. Sequences being decoded continue with the new weights, on a
        recomputed key-value cache; `Generation.swaps` records where.

        Args:
            source: A folder of safetensors with all weights, or (name, tensor) pairs, which may be a subset.
            version: Version to record for tokens that the new weights sample.
            drain: Finish the sequences being decoded with the old weights first; new requests wait.
        """
        # Read here, so that the decoding thread does not wait for the disk.
        weights = await shared_threads().run(list, read_weights(source))
        await asyncio.wrap_future(
            self._submit_call(lambda: self._load(weights, version, complete=is_folder(source)), drain=drain)
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int | None = None) -> None:
        """Replace some weights by name, between two tokens, and wait for it.

        For a trainer that sends the weights in parts: only the last part has a version.
        """
        self._submit_call(lambda: self._load(list(weights), version)).result()

    def pause(self) -> None:
        """Stop decoding between two tokens, and wait until it has stopped. Requests wait until `resume`."""
        self._submit_call(lambda: setattr(self, "_paused", True)).result()

    def resume(self) -> None:
        """Continue every sequence after `pause`, with the current weights."""
        self._submit_call(lambda: setattr(self, "_paused", False)).result()

    def close(self) -> None:
        """Stop the decoding thread; pending requests raise EngineFailure. Safe to call twice."""
        with self._close_lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        # A forward pass cannot be interrupted, and Python aborts if the process exits during one.
        self._thread.join(timeout=60)

    def _submit(self, work: _Work) -> None:
        # The lock keeps work from being queued after the None that ends the thread, where it would never run.
        with self._close_lock:
            if self._closed:
                raise EngineFailure("The engine is closed.")
            self._inbox.put(work)

    def _submit_call(self, function: Callable[[], Any], *, drain: bool = False) -> Future[Any]:
        job = _Job(function, Future(), drain)
        self._submit(job)
        return job.future

    # The methods below run in the decoding thread.

    @torch.inference_mode()
    def _load(self, weights: list[tuple[str, torch.Tensor]], version: int | None, *, complete: bool = False) -> None:
        own = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        _check_weights(weights, own, self.model.state_dict() if complete else {})
        self._cache_is_stale = True
        for name, tensor in weights:
            own[name].copy_(tensor)
        if version is not None:
            self.weights_version = version
            for sequence in self._batch.sequences:
                sequence.record_swap(version)

    @torch.inference_mode()
    def _score(self, prompt: list[int], response: list[int]) -> list[float]:
        # One sequence at a time, without padding, so that a score does not depend on other requests.
        ids = torch.tensor([prompt + response])
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(response) + 1).logits[0, :-1]
        return torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()

    def _decode(self) -> None:
        while self._take_work():
            self._drop_cancelled()
            while self._draining and not self._batch.sequences:
                self._draining.popleft().run()
            free_slots = 0 if self._draining else max(0, self._max_concurrency - len(self._batch.sequences))
            new = [self._queued.popleft() for _ in range(min(free_slots, len(self._queued)))]
            decoding = [*self._batch.sequences, *new]
            try:
                if self._cache_is_stale:
                    self._batch.recompute_cache()
                    self._cache_is_stale = False
                for sequence in new:
                    sequence.weights_version = self.weights_version
                finished = self._batch.join(new) if new else []
                finished += self._batch.step() if self._batch.sequences else []
            except Exception as error:
                self._batch = ContinuousBatch(self.model)
                self._fail(decoding, f"The model raised while decoding: {error!r}")
                continue
            for sequence in finished:
                future = self._futures.pop(id(sequence))
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
        self._fail([*self._batch.sequences, *self._queued], "The engine was closed before the tokens were sampled.")
        for job in self._draining:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(EngineFailure("The engine was closed before the new weights were loaded."))

    def _take_work(self) -> bool:
        """Take all work from the inbox, blocking while there is nothing to decode. Returns False to end the thread."""
        while not self._inbox.empty() or self._paused or not (self._batch.sequences or self._queued or self._draining):
            work = self._inbox.get()
            if work is None:
                return False
            if isinstance(work, _Job):
                # In order: a job submitted after weights that wait for the batch to drain must not run before them.
                if work.drain or self._draining:
                    self._draining.append(work)
                else:
                    work.run()
                continue
            sequence, future = work
            self._futures[id(sequence)] = future
            self._queued.append(sequence)
        return True

    def _drop_cancelled(self) -> None:
        """Drop the sequences whose request was cancelled, for example by an episode timeout."""
        cancelled = [
            sequence for sequence in (*self._batch.sequences, *self._queued) if self._futures[id(sequence)].cancelled()
        ]
        if not cancelled:
            return
        for sequence in cancelled:
            sequence.stop_reason = "abort"
            del self._futures[id(sequence)]
        self._queued = deque(sequence for sequence in self._queued if not sequence.stop_reason)
        self._batch.remove_finished()

    def _fail(self, sequences: list[Sequence], reason: str) -> None:
        for sequence in sequences:
            future = self._futures.pop(id(sequence))
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineFailure(reason))


def _check_weights(
    weights: list[tuple[str, torch.Tensor]], own: dict[str, torch.Tensor], required: dict[str, torch.Tensor]
) -> None:
    """Raise, before anything is copied, if a weight does not fit the model or a required one is missing."""
    for name, tensor in weights:
        if name not in own:
            raise EngineFailure(f"The engine's model has no weight called {name!r}.")
        if own[name].shape != tensor.shape:
            raise EngineFailure(
                f"The weight {name!r} has shape {list(tensor.shape)}, but the model's has {list(own[name].shape)}."
            )
    # By address: a tied output head is the same tensor under a second name, which checkpoints leave out.
    new = {own[name].data_ptr() for name, _ in weights}
    missing = [name for name, tensor in required.items() if tensor.data_ptr() not in new]
    if missing:
        raise EngineFailure(f"The new weights are incomplete: {missing[0]!r} is missing.")
