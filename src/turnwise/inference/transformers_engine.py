"""The `transformers` engine: exact, batched, no extra install. One thread decodes; any number of coroutines wait."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as IdSequence
from concurrent.futures import Future
from typing import Any

import torch

from turnwise.errors import EngineFailure
from turnwise.inference.continuous_batch import ContinuousBatch, Sequence, check_model
from turnwise.inference.engine import Generation, Sampling

_Work = tuple[Sequence, "Future[int]"] | Callable[[], None]


class TransformersEngine:
    """Generates with a plain Hugging Face model in this process.

    Example:
        >>> import asyncio
        >>> from turnwise.models import resolve
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
        self._vocabulary = int(self.model.get_input_embeddings().num_embeddings)
        self._max_concurrency = max_concurrency
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        # All below belongs to the decoding thread.
        self._batch = ContinuousBatch(self.model)
        self._queued: deque[Sequence] = deque()
        self._waiting: dict[int, Future[int]] = {}
        self._thread = threading.Thread(target=self._decode, name="transformers-engine", daemon=True)
        self._thread.start()

    async def generate(self, prompt_ids: IdSequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; `session` is not needed, because nothing is cached between turns."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        # Inside the model such an id would fail everyone who shares the batch.
        if min(prompt_ids) < 0 or max(prompt_ids) >= self._vocabulary:
            raise EngineFailure(f"The prompt holds a token id outside the model's vocabulary of {self._vocabulary}.")
        sequence = Sequence(list(prompt_ids), sampling)
        done: Future[int] = Future()
        self._submit((sequence, done))
        version = await asyncio.wrap_future(done)
        return Generation(sequence.token_ids, sequence.log_probs, sequence.stop_reason, version)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int | None = None) -> None:
        """Replace weights by name, between two tokens of whatever is being decoded."""
        done: Future[None] = Future()

        def load() -> None:
            try:
                self._copy_weights(weights)
                if version is not None:
                    self.weights_version = version
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self._submit(load)
        done.result()

    def close(self) -> None:
        """Stop the decoding thread; whoever still waits for tokens gets an EngineFailure. Safe to call twice."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        self._thread.join(timeout=10)

    def _submit(self, work: _Work) -> None:
        # The lock keeps work from landing behind the end mark, where nobody would ever take it.
        with self._closing:
            if self._closed:
                raise EngineFailure("The engine is closed.")
            self._inbox.put(work)

    @torch.inference_mode()
    def _copy_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        own = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        for name, tensor in weights:
            if name not in own:
                raise EngineFailure(f"The engine's model has no weight called {name!r}.")
            if own[name].shape != tensor.shape:
                raise EngineFailure(
                    f"The weight {name!r} has shape {list(tensor.shape)}, the engine's model {list(own[name].shape)}."
                )
            own[name].copy_(tensor)

    def _decode(self) -> None:
        while self._take_work():
            self._forget_cancelled()
            room = max(0, self._max_concurrency - len(self._batch.sequences))
            new = [self._queued.popleft() for _ in range(min(room, len(self._queued)))]
            decoding = [*self._batch.sequences, *new]
            try:
                finished = self._batch.join(new) if new else []
                finished += self._batch.step() if self._batch.sequences else []
            except Exception as error:
                self._batch = ContinuousBatch(self.model)
                self._fail(decoding, f"The model raised while decoding: {error!r}")
                continue
            for sequence in finished:
                future = self._waiting.pop(id(sequence))
                if future.set_running_or_notify_cancel():
                    future.set_result(self.weights_version)
        self._fail([*self._batch.sequences, *self._queued], "The engine was closed before the tokens were sampled.")

    def _take_work(self) -> bool:
        """Take everything that has come in, waiting for the first of it if there is nothing to decode; False: end."""
        while not self._inbox.empty() or not (self._batch.sequences or self._queued):
            work = self._inbox.get()
            if work is None:
                return False
            if callable(work):
                work()
                continue
            sequence, future = work
            self._waiting[id(sequence)] = future
            self._queued.append(sequence)
        return True

    def _forget_cancelled(self) -> None:
        """Drop the sequences that nobody waits for any more, such as those of episodes that ran out of time."""
        given_up = [
            sequence for sequence in (*self._batch.sequences, *self._queued) if self._waiting[id(sequence)].cancelled()
        ]
        if not given_up:
            return
        for sequence in given_up:
            sequence.stop_reason = "abort"
            del self._waiting[id(sequence)]
        self._queued = deque(sequence for sequence in self._queued if not sequence.stop_reason)
        self._batch.remove_ended()

    def _fail(self, sequences: list[Sequence], reason: str) -> None:
        for sequence in sequences:
            future = self._waiting.pop(id(sequence))
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineFailure(reason))
