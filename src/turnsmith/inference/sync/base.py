"""The synchronous face of an engine: lists of texts in, texts and tokens out.

A thin face: every call goes through the async seam `Engine.generate`, on one event loop that all calls of the face
share. So calls from many threads are batched together, as episodes are.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.loop_thread import LoopThread

if TYPE_CHECKING:
    import torch

Text = str | Sequence[int]
"""Text, or its exact token ids."""
Result = TypeVar("Result")


@dataclass(slots=True)
class InferenceOutput:
    """What an engine said to a list of prompts, one entry a prompt."""

    sequences: list[str]
    """The texts, without the prompt and without control tokens."""
    tokens: np.ndarray[Any, np.dtype[np.int64]]
    """The sampled ids, (batch, longest), padded on the right."""
    token_ids: list[list[int]]
    """The same without padding; what `compute_log_probs` takes to be exact."""
    log_probs: list[list[float]]
    """One for each sampled token, under the distribution it was sampled from."""
    stop_reasons: list[str]
    """`stop` (the model ended) or `length` (it was cut)."""
    exact: bool = True
    """Whether ids and log-probs are those that were sampled; False where a server gave only text."""


class BaseInferenceEngine:
    """Any engine on the seam, together with its tokenizer, for plain synchronous code.

    `create_inference_engine` makes one from a model. Prompts are taken as they are written: no chat template is put
    around them, and a control token that is spelled out in one counts as that token. For conversations there is
    `MultiTurnInferenceEngine`.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine
        >>> from turnsmith.models import resolve
        >>> tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
        >>> with BaseInferenceEngine(ScriptedEngine(["left", "right"], Chat(tokenizer)), tokenizer) as face:
        ...     face.generate(["Where to?", "And you?"]).sequences
        ['left', 'left']
    """

    def __init__(self, engine: Engine, tokenizer: Any, *, stop_token_ids: Sequence[int] | None = None) -> None:
        self.engine = engine
        """The async seam."""
        self.tokenizer = tokenizer
        stops = [tokenizer.eos_token_id] if stop_token_ids is None else stop_token_ids
        self.stop_token_ids = tuple(int(token) for token in stops if token is not None)
        """Where `generate` stops; conversations stop where the chat template ends a turn."""
        self._loop = LoopThread("turnsmith-inference")
        self._calls = count()

    @cached_property
    def chat(self) -> Chat:
        """The chat side of the tokenizer; an error for a model that has no chat template."""
        return Chat(self.tokenizer)

    def generate(
        self,
        prompts: Sequence[Text],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        seed: int | None = None,
    ) -> InferenceOutput:
        """Continue each prompt.

        Args:
            prompts: Texts, or token ids where they must be exact.
            max_tokens: Most tokens to sample for each.
            temperature: 0 takes the most likely token each time.
            top_p: Sample from the most likely tokens that make up this much of the probability.
            seed: The same seed and prompts give the same answers; equal prompts of one call still differ.
        """
        sampling = make_sampling(max_tokens, temperature, top_p, seed)
        return self.run(self.generate_all(prompts, sampling))

    def compute_log_probs(self, prompts: Sequence[Text], responses: Sequence[Text]) -> torch.Tensor:
        """How likely the model is to answer each prompt with each response: sums over the response's tokens.

        Prompt and response are encoded apart and their tokens put together, so that the response's tokens are its own.
        No end token is added. Temperature 1, no top-p.

        Returns:
            float32, (batch,).
        """
        import torch

        if len(prompts) != len(responses):
            raise ConfigError(f"{len(prompts)} prompts but {len(responses)} responses: give one for each.")
        rows = [(self.encode(prompt), self._encode_more(said)) for prompt, said in zip(prompts, responses, strict=True)]
        if any(not prompt for prompt, _ in rows):
            raise EngineFailure("A prompt is empty: a log-prob needs at least one token before it.")
        scores = self.run(self._score_all(rows))
        return torch.tensor([sum(row) for row in scores], dtype=torch.float32)

    async def generate_all(
        self,
        prompts: Sequence[Text],
        sampling: Sampling,
        *,
        at_once: int | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> InferenceOutput:
        """Continue each prompt, with at most `at_once` in the engine at a time; `on_done` is called after each."""
        if isinstance(prompts, str):
            raise ConfigError("prompts is one text: put it in a list.")
        call = next(self._calls)

        async def ask(place: int) -> Generation:
            # Equal prompts must not get equal answers.
            seed = None if sampling.seed is None else zlib.crc32(f"{sampling.seed}/{place}".encode())
            own = replace(sampling, stop_token_ids=self.stop_token_ids, seed=seed)
            said = await self.engine.generate(self.encode(prompts[place]), own, session=f"generate-{call}-{place}")
            on_done()
            return said

        return self._output(await run_concurrently(ask, len(prompts), at_once))

    def encode(self, text: Text) -> list[int]:
        """A prompt's tokens, as the tokenizer encodes any text (with a start token where the model has one)."""
        return list(self.tokenizer.encode(text)) if isinstance(text, str) else list(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without control tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do async work on the event loop that all calls of this face share, and wait for it."""
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

    def _encode_more(self, text: Text) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if isinstance(text, str) else list(text)

    async def _score_all(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        score = cast("Callable[..., Awaitable[list[float]]] | None", getattr(self.engine, "score", None))
        if score is None:
            raise EngineFailure(f"{type(self.engine).__name__} cannot say how likely a given text is.")
        return await run_concurrently(lambda place: score(*rows[place]), len(rows))

    def _output(self, said: Sequence[Generation]) -> InferenceOutput:
        ids = [list(one.token_ids) for one in said]
        padding = self.tokenizer.pad_token_id
        if padding is None:
            padding = self.stop_token_ids[0] if self.stop_token_ids else 0
        tokens = np.full((len(ids), max(map(len, ids), default=0)), padding, dtype=np.int64)
        for row, own in zip(tokens, ids, strict=True):
            row[: len(own)] = own
        texts = [self.decode(own) for own in ids]
        log_probs, reasons = [list(one.log_probs) for one in said], [one.stop_reason for one in said]
        return InferenceOutput(texts, tokens, ids, log_probs, reasons, exact=all(one.exact for one in said))


def make_sampling(max_tokens: int, temperature: float, top_p: float, seed: int | None = None) -> Sampling:
    """Check what a caller asked for and put it in one value.

    Example:
        >>> make_sampling(16, 0.0, 0.9).top_p  # greedy: nothing is cut off, so log-probs are those of the whole
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
    work: Callable[[int], Awaitable[Result]], number: int, at_once: int | None = None
) -> list[Result]:
    """Do `work(0)` to `work(number - 1)`, starting the next as soon as one ends; results in order.

    The first error cancels the rest and is raised.

    Example:
        >>> async def square(place: int) -> int:
        ...     return place * place
        >>> asyncio.run(run_concurrently(square, 4, at_once=2))
        [0, 1, 4, 9]
    """
    results: dict[int, Result] = {}
    places = iter(range(number))

    async def worker() -> None:
        for place in places:  # shared: each worker takes the next one that nobody has
            results[place] = await work(place)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(number if at_once is None else min(at_once, number)):
                group.create_task(worker())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [results[place] for place in range(number)]
