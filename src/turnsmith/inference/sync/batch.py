"""Batch generation over many prompts, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from turnsmith.errors import ConfigError
from turnsmith.inference.sync.base import BaseInferenceEngine, InferenceOutput, TextOrIds, make_sampling


class BatchInferenceManager:
    """Keeps `batch_size` prompts in flight: the next is submitted as soon as one is done, so that a long response
    does not hold up the others.

    Example:
        >>> from turnsmith.inference.sync.create import create_inference_engine
        >>> with create_inference_engine("tiny", backend="transformers") as engine:
        ...     output = BatchInferenceManager(engine, batch_size=2).generate_batch(["a", "b", "c"], max_tokens=4)
        >>> len(output.sequences), len(output.tokens)
        (3, 3)
    """

    def __init__(self, engine: BaseInferenceEngine, batch_size: int = 32, *, console: Console | None = None) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1.")
        self.engine = engine
        self.batch_size = batch_size
        self._console = console or Console(stderr=True)

    def generate_batch(
        self,
        prompts: Sequence[TextOrIds],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        seed: int | None = None,
    ) -> InferenceOutput:
        """Continue each prompt; responses are in the order of the prompts. Shows a progress bar in a terminal."""
        sampling = make_sampling(max_tokens, temperature, top_p, seed)
        columns = (
            TextColumn("generating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            bar = progress.add_task("", total=len(prompts))
            return self.engine.run(
                self.engine.generate_all(
                    prompts, sampling, max_concurrency=self.batch_size, on_done=lambda: progress.advance(bar)
                )
            )
