"""The `transformers` engine: exact, batched, no extra install. One thread decodes; any number of coroutines wait.

Everything that touches the model runs in that thread, between two tokens: new weights and scoring too. So no token and
no score is ever of weights that are half new.
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

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.continuous_batch import ContinuousBatch, Sequence, check_model
from turnsmith.inference.weights import is_folder, read_weights
from turnsmith.threads import shared_threads

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights


@dataclass(frozen=True, slots=True)
class _Job:
    """Something else to do with the model than decoding."""

    do: Callable[[], Any]
    done: Future[Any]
    drain: bool = False
    """Whether what is being decoded must end first."""

    def run(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self.do())
        except Exception as error:
            self.done.set_exception(error)


_Work = tuple[Sequence, "Future[None]"] | _Job


class TransformersEngine:
    """Generates with a plain Hugging Face model in this process.

    Example:
        >>> import asyncio
        >>> from turnsmith.models import resolve
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
        self._waiting: dict[int, Future[None]] = {}
        self._draining: deque[_Job] = deque()
        self._is_stale = False
        self._paused = False
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
        done: Future[None] = Future()
        self._submit((sequence, done))
        await asyncio.wrap_future(done)
        return Generation(
            sequence.token_ids,
            sequence.log_probs,
            sequence.stop_reason,
            sequence.weights_version,
            swaps=tuple(sequence.swaps),
        )

    async def score(self, prompt_ids: IdSequence[int], response_ids: IdSequence[int]) -> list[float]:
        """The log-prob of each response token after the prompt, at temperature 1."""
        if not response_ids:
            return []
        return await asyncio.wrap_future(self._do(lambda: self._score(list(prompt_ids), list(response_ids))))

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Replace the model's weights while requests are in flight; none of them is lost.

        Either all weights are new or, if this raises, none. What is being decoded goes on with the new weights, as if
        they had been there from its first token; `Generation.swaps` says where.

        Args:
            source: A folder of safetensors, which must hold all weights; or names and tensors, which may be some.
            version: What tokens that the new weights sample are marked with.
            drain: Let requests that have begun end with the old weights first. Others wait.
        """
        # Read before the decoding thread has to wait for it.
        weights = await shared_threads().run(list, read_weights(source))
        await asyncio.wrap_future(self._do(lambda: self._load(weights, version, whole=is_folder(source)), drain=drain))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int | None = None) -> None:
        """Replace some weights by name, between two tokens of whatever is being decoded, and wait for it.

        For a trainer that sends the weights in parts, of which the last brings the version, while nothing is sampled.
        """
        self._do(lambda: self._load(list(weights), version)).result()

    def pause(self) -> None:
        """Stop between two tokens, and wait for that: until `resume` nothing is sampled and nobody is answered."""
        self._do(lambda: setattr(self, "_paused", True)).result()

    def resume(self) -> None:
        """Go on after `pause`, with the weights of now, where every sequence was."""
        self._do(lambda: setattr(self, "_paused", False)).result()

    def close(self) -> None:
        """Stop the decoding thread; whoever still waits for tokens gets an EngineFailure. Safe to call twice."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        # A forward pass cannot be broken off, and Python aborts if it ends in the middle of one.
        self._thread.join(timeout=60)

    def _submit(self, work: _Work) -> None:
        # The lock keeps work from landing behind the end mark, where nobody would ever take it.
        with self._closing:
            if self._closed:
                raise EngineFailure("The engine is closed.")
            self._inbox.put(work)

    def _do(self, do: Callable[[], Any], *, drain: bool = False) -> Future[Any]:
        job = _Job(do, Future(), drain)
        self._submit(job)
        return job.done

    # What runs in the decoding thread.

    @torch.inference_mode()
    def _load(self, weights: list[tuple[str, torch.Tensor]], version: int | None, *, whole: bool = False) -> None:
        own = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        _check_weights(weights, own, self.model.state_dict() if whole else {})
        self._is_stale = True
        for name, tensor in weights:
            own[name].copy_(tensor)
        if version is not None:
            self.weights_version = version
            for sequence in self._batch.sequences:
                sequence.swap(version)

    @torch.inference_mode()
    def _score(self, prompt: list[int], response: list[int]) -> list[float]:
        # A row at a time: nothing is padded, so that a score does not depend on who else is there.
        ids = torch.tensor([prompt + response])
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(response) + 1).logits[0, :-1]
        return torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()

    def _decode(self) -> None:
        while self._take_work():
            self._forget_cancelled()
            while self._draining and not self._batch.sequences:
                self._draining.popleft().run()
            room = 0 if self._draining else max(0, self._max_concurrency - len(self._batch.sequences))
            new = [self._queued.popleft() for _ in range(min(room, len(self._queued)))]
            decoding = [*self._batch.sequences, *new]
            try:
                if self._is_stale:
                    self._batch.refresh()
                    self._is_stale = False
                for sequence in new:
                    sequence.weights_version = self.weights_version
                finished = self._batch.join(new) if new else []
                finished += self._batch.step() if self._batch.sequences else []
            except Exception as error:
                self._batch = ContinuousBatch(self.model)
                self._fail(decoding, f"The model raised while decoding: {error!r}")
                continue
            for sequence in finished:
                future = self._waiting.pop(id(sequence))
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
        self._fail([*self._batch.sequences, *self._queued], "The engine was closed before the tokens were sampled.")
        for job in self._draining:
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(EngineFailure("The engine was closed before the new weights were loaded."))

    def _take_work(self) -> bool:
        """Take everything that has come in, waiting for more while there is nothing to decode; False: end."""
        while not self._inbox.empty() or self._paused or not (self._batch.sequences or self._queued or self._draining):
            work = self._inbox.get()
            if work is None:
                return False
            if isinstance(work, _Job):
                # In turn: what comes after weights that wait for the batch to drain must not be done before them.
                if work.drain or self._draining:
                    self._draining.append(work)
                else:
                    work.run()
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


def _check_weights(
    weights: list[tuple[str, torch.Tensor]], own: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]
) -> None:
    """Raise before anything is copied if a weight does not fit, or if one of those that are wanted is not there."""
    for name, tensor in weights:
        if name not in own:
            raise EngineFailure(f"The engine's model has no weight called {name!r}.")
        if own[name].shape != tensor.shape:
            raise EngineFailure(
                f"The weight {name!r} has shape {list(tensor.shape)}, the engine's model {list(own[name].shape)}."
            )
    # By address: a tied output head is the same tensor under a second name, which a checkpoint leaves out.
    given = {own[name].data_ptr() for name, _ in weights}
    missing = [name for name, tensor in wanted.items() if tensor.data_ptr() not in given]
    if missing:
        raise EngineFailure(f"The new weights are not all there: {missing[0]!r} is missing.")
