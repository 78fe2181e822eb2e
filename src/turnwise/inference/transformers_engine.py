"""The `transformers` engine: exact, batched, no extra install. One thread decodes; any number of coroutines wait."""

from __future__ import annotations

import asyncio
import queue
import threading
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
        self._max_concurrency = max_concurrency
        self._inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._decode, name="transformers-engine", daemon=True)
        self._thread.start()

    async def generate(self, prompt_ids: IdSequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; `session` is not needed, because nothing is cached between turns."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        sequence = Sequence(list(prompt_ids), sampling)
        done: Future[int] = Future()
        self._inbox.put((sequence, done))
        version = await asyncio.wrap_future(done)
        return Generation(sequence.token_ids, sequence.log_probs, sequence.stop_reason, version)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int | None = None) -> None:
        """Replace weights by name, between two tokens of whatever is being decoded."""
        done: Future[None] = Future()

        def load() -> None:
            own = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
            try:
                with torch.inference_mode():
                    for name, tensor in weights:
                        if name not in own:
                            raise EngineFailure(f"The engine's model has no weight called {name!r}.")
                        own[name].copy_(tensor)
                if version is not None:
                    self.weights_version = version
                done.set_result(None)
            except Exception as error:
                done.set_exception(error)

        self._inbox.put(load)
        done.result()

    def close(self) -> None:
        """Stop the decoding thread."""
        self._inbox.put(None)
        self._thread.join(timeout=10)

    def _decode(self) -> None:
        batch = ContinuousBatch(self.model)
        waiting: dict[int, Future[int]] = {}
        while True:
            new: list[Sequence] = []
            while not self._inbox.empty() or not (batch.sequences or new):
                work = self._inbox.get()
                if work is None:
                    return
                if callable(work):
                    work()
                    continue
                sequence, future = work
                waiting[id(sequence)] = future
                new.append(sequence)
                if len(batch.sequences) + len(new) >= self._max_concurrency:
                    break
            try:
                finished = batch.join(new) if new else []
                finished += batch.step() if batch.sequences else []
            except Exception as error:
                batch = ContinuousBatch(self.model)
                for future in waiting.values():
                    future.set_exception(EngineFailure(f"The model raised while decoding: {error!r}"))
                waiting.clear()
                continue
            for sequence in finished:
                waiting.pop(id(sequence)).set_result(self.weights_version)
