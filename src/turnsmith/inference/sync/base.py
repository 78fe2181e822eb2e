"""The synchronous API over an async engine: lists of prompts in, texts and tokens out.

Every call awaits `Engine.generate` on one event loop, which all calls share. So calls from several threads are batched
together, as episodes are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling, derived_seed

if TYPE_CHECKING:
    import torch

TextOrIds = str | Sequence[int]
"""Text, or its exact token ids."""
Result = TypeVar("Result")


@dataclass(slots=True)
class InferenceOutput:
    """The responses to a list of prompts, one entry per prompt; indexing and iterating give their texts.

    Example:
        >>> list(InferenceOutput(["a", "b"], np.zeros((2, 1), np.int64), [[0], [0]], [[0.0], [0.0]], ["stop", "stop"]))
        ['a', 'b']
    """

    sequences: list[str]
    """The texts, without the prompts and without special tokens."""
    tokens: np.ndarray[Any, np.dtype[np.int64]]
    """The sampled ids, (batch, longest), padded on the right."""
    token_ids: list[list[int]]
    """The same without padding; pass these to `compute_log_probs` for exact scores."""
    log_probs: list[list[float]]
    """One per sampled token, under the distribution it was sampled from."""
    stop_reasons: list[str]
    """`stop` (a stop token was sampled) or `length` (`max_tokens` was reached)."""
    exact: bool = True
    """Whether ids and log-probs are exactly those sampled; False if a server returned only text."""

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> str:
        return self.sequences[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sequences)


class BaseInferenceEngine:
    """The synchronous API of any `Engine`, together with its tokenizer.

    `create_inference_engine` creates one from a model. Prompts are used verbatim: no chat template is applied, and a
    special token written out in a prompt is encoded as that token. For conversations, use `MultiTurnInferenceEngine`.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine
        >>> from turnsmith.inference.models import resolve
        >>> tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
        >>> with BaseInferenceEngine(ScriptedEngine(["left", "right"], Chat(tokenizer)), tokenizer) as engine:
        ...     engine.generate(["Where to?", "And you?"]).sequences
        ['left', 'left']
    """

    def __init__(self, engine: Engine, tokenizer: Any, *, stop_token_ids: Sequence[int] | None = None) -> None:
        self.engine = engine
        """The async engine."""
        self.tokenizer = tokenizer
        stop_ids = [tokenizer.eos_token_id] if stop_token_ids is None else stop_token_ids
        self.stop_token_ids = tuple(int(token) for token in stop_ids if token is not None)
        """Where `generate` stops; conversations stop where the chat template ends a turn."""
        self.template_settings: Mapping[str, Any] = {}
        """Variables for the chat template, such as `{"enable_thinking": False}`; set them before `chat` is used."""
        self._loop = LoopThread("turnsmith-inference")
        self._calls = count()

    @cached_property
    def chat(self) -> Chat:
        """Converts conversations to tokens."""
        return Chat(self.tokenizer, template_settings=self.template_settings)

    def generate(
        self,
        prompts: Sequence[TextOrIds],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        seed: int | None = None,
        max_new_tokens: int | None = None,
    ) -> InferenceOutput:
        """Continue each prompt.

        Args:
            prompts: Texts, or token ids where they must be exact.
            max_tokens: Maximum tokens to sample for each prompt. `max_new_tokens` is another name for it.
            temperature: Sampling temperature; 0 is greedy decoding.
            top_p: Nucleus sampling: sample from the most likely tokens whose probabilities add up to this.
            seed: The same seed and prompts give the same responses; equal prompts within a call get different ones.
        """
        sampling = make_sampling(max_new_tokens or max_tokens, temperature, top_p, seed)
        return self.run(self.generate_all(prompts, sampling))

    def compute_log_probs(self, prompts: Sequence[TextOrIds], responses: Sequence[TextOrIds]) -> torch.Tensor:
        """Log-probability of each response given its prompt: the sum over the response's tokens.

        Prompt and response are encoded separately and then concatenated. No end token is added. Temperature 1, no
        top-p.

        Returns:
            float32, (batch,).
        """
        import torch

        if len(prompts) != len(responses):
            raise ConfigError(f"{len(prompts)} prompts but {len(responses)} responses: pass one response per prompt.")
        pairs = [
            (self.encode(prompt), self._encode_response(response))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        if any(not prompt for prompt, _ in pairs):
            raise EngineFailure("A prompt is empty: scoring needs at least one token before the response.")
        scores = self.run(self._score_all(pairs))
        return torch.tensor([sum(log_probs) for log_probs in scores], dtype=torch.float32)

    async def generate_all(
        self,
        prompts: Sequence[TextOrIds],
        sampling: Sampling,
        *,
        max_concurrency: int | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> InferenceOutput:
        """Continue each prompt, with at most `max_concurrency` in flight; calls `on_done` after each."""
        if isinstance(prompts, str):
            raise ConfigError("prompts is a string: pass a list of prompts.")
        call = next(self._calls)

        async def generate(index: int) -> Generation:
            # A seed per prompt, so that equal prompts get different responses.
            own = replace(sampling, stop_token_ids=self.stop_token_ids, seed=derived_seed(sampling.seed, index))
            prompt_ids = self.encode(prompts[index])
            generation = await self.engine.generate(prompt_ids, own, session=f"generate-{call}-{index}")
            on_done()
            return generation

        return self._make_output(await run_concurrently(generate, len(prompts), max_concurrency))

    def encode(self, text: TextOrIds) -> list[int]:
        """Encode a prompt, with the start token if the tokenizer adds one."""
        return list(self.tokenizer.encode(text)) if isinstance(text, str) else list(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode tokens to text, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop that all calls share, and wait for it."""
        return self._loop.run(work)

    def close(self) -> None:
        """Stop the engine, its threads and its processes. Safe to call twice."""
        self._loop.close()
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode_response(self, text: TextOrIds) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if isinstance(text, str) else list(text)

    async def _score_all(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        score = cast("Callable[..., Awaitable[list[float]]] | None", getattr(self.engine, "score", None))
        if score is None:
            raise EngineFailure(f"{type(self.engine).__name__} cannot compute log-probs: it has no method `score`.")
        return await run_concurrently(lambda index: score(*pairs[index]), len(pairs))

    def _make_output(self, generations: Sequence[Generation]) -> InferenceOutput:
        ids = [list(generation.token_ids) for generation in generations]
        padding = self.tokenizer.pad_token_id
        if padding is None:
            padding = self.stop_token_ids[0] if self.stop_token_ids else 0
        tokens = np.full((len(ids), max(map(len, ids), default=0)), padding, dtype=np.int64)
        for row, row_ids in zip(tokens, ids, strict=True):
            row[: len(row_ids)] = row_ids
        return InferenceOutput(
            [self.decode(row_ids) for row_ids in ids],
            tokens,
            ids,
            [list(generation.log_probs) for generation in generations],
            [generation.stop_reason for generation in generations],
            exact=all(generation.exact for generation in generations),
        )


def make_sampling(max_tokens: int, temperature: float, top_p: float, seed: int | None = None) -> Sampling:
    """Validate sampling parameters.

    Example:
        >>> make_sampling(16, 0.0, 0.9).top_p  # greedy: without top-p, log-probs are those of the full distribution
        1.0
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}; it must be at least 1.")
    if not temperature >= 0:
        raise ConfigError(f"temperature is {temperature}; it must be 0 or more.")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p}; it must be more than 0 and at most 1.")
    return Sampling(max_tokens, float(temperature), 1.0 if temperature == 0 else float(top_p), seed=seed)


async def run_concurrently(
    work: Callable[[int], Awaitable[Result]], count: int, max_concurrency: int | None = None
) -> list[Result]:
    """Await `work(0)` to `work(count - 1)`, starting the next as soon as one is done; results in order.

    The first error cancels the rest and is raised.

    Example:
        >>> async def square(index: int) -> int:
        ...     return index * index
        >>> asyncio.run(run_concurrently(square, 4, max_concurrency=2))
        [0, 1, 4, 9]
    """
    results: dict[int, Result] = {}
    indices = iter(range(count))

    async def take_next() -> None:
        for index in indices:  # shared by all tasks
            results[index] = await work(index)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count if max_concurrency is None else min(max_concurrency, count)):
                group.create_task(take_next())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [results[index] for index in range(count)]
