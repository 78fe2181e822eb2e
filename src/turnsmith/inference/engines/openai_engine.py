"""Engine for any OpenAI-compatible server: `vllm serve`, SGLang's, or a hosted API.

If the server returns token ids and log-probs (vLLM does), they are exact. If it returns only text, the engine encodes
the text with a local tokenizer, so that episodes run and tokens can be counted; such a generation has `exact=False` and
zeros as log-probs, and training rejects it.

Before the first turn the engine requests a few tokens, to find out which kind of server it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Unpack

from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.message_reader import MessageReader
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.openai_protocol import (
    Completion,
    Dialect,
    chat_request,
    completion_request,
    read_completion,
    read_prompt_logprobs,
)
from turnsmith.inference.http_client import HttpClient, ServerOptions, ServerRefused

_COMPLETIONS, _CHAT = "/completions", "/chat/completions"
_UNSUPPORTED = (400, 404, 405, 422, 501)
"""Statuses with which servers reject an endpoint or token ids that they do not support."""
_PROBE_PROMPT = [5, 7, 11]
"""Ids that every vocabulary has, after which no model is certain of the next token."""
_PROBE_SAMPLING = Sampling(max_tokens=4, temperature=1.0, top_k=1)
"""Top-k of 1: log-probs after top-k are then all 0, and those before it are not."""


class OpenAIEngine:
    """Generates with a server that speaks OpenAI's API. The server manages its own weights, so the version stays 0.

    Args:
        url: The URL of the API, such as `http://127.0.0.1:8000/v1`; without a path, `/v1` is appended.
        model: The name of one of its models; None: the only one it has.
        tokenizer: The model's tokenizer; required if the server returns only text, and then any tokenizer will do.
        api: `completions` (token ids in), `chat` (messages in, text out), or `auto`: the first one supported.
        server: `api_key`, `timeout`, `retries` and `max_concurrency`, see `ServerOptions`.

    Example:
        >>> engine = OpenAIEngine("http://127.0.0.1:9", "a-model", retries=0)
        >>> asyncio.run(engine.generate([1, 2], Sampling(), session="episode-1"))
        Traceback (most recent call last):
        turnsmith.errors.EngineFailure: The server at http://127.0.0.1:9/v1 cannot be reached: ...
        >>> engine.close()
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        tokenizer: Any = None,
        api: Literal["auto", "completions", "chat"] = "auto",
        **server: Unpack[ServerOptions],
    ) -> None:
        if api not in ("auto", "completions", "chat"):
            raise ConfigError(f"There is no api {api!r}: choose completions, chat or auto.")
        self.tokenizer = tokenizer
        self.weights_version = 0
        self.why_inexact = ""
        """After the first turn: why generations are not (always) exact, in one sentence; empty if they are."""
        self._api, self._model = api, model
        self._max_model_len: int | None = None
        self._dialect: Dialect | None = None
        self._dialect_lock = asyncio.Lock()
        self._server = HttpClient(_add_api_version(url), **server)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; `session` is sent as `X-Session-ID`, so that a router can keep an episode on one
        replica.
        """
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        # A copy, because the episode appends to its own list.
        return await self._server.run_async(self._generate(list(prompt_ids), sampling, session))

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-prob of each response token given the prompt, at temperature 1. Needs a server with vLLM's
        `prompt_logprobs`.
        """
        if not response_ids:
            return []
        return await self._server.run_async(self._score([*prompt_ids, *response_ids], list(response_ids)))

    def model_name_or_path(self) -> str:
        """The folder or id that the server loaded its model from, or else the name it serves it under."""
        return self._server.run(self._fetch_model())

    def close(self) -> None:
        """Close all connections; pending requests raise EngineFailure. Safe to call twice."""
        self._server.close()

    async def _generate(self, prompt_ids: list[int], sampling: Sampling, session: str) -> Generation:
        dialect = await self._negotiate()
        if self._max_model_len is not None and dialect.api == "completions":
            remaining = self._max_model_len - len(prompt_ids)
            if remaining < 1:
                raise EngineFailure(
                    f"The prompt has {len(prompt_ids)} tokens, but the server allows {self._max_model_len}, prompt and "
                    "response together."
                )
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, remaining))
        completion = await self._complete(dialect, prompt_ids, sampling, session)
        if completion.token_ids is None:
            return self._encode_completion(completion, sampling)
        exact = completion.log_probs is not None and dialect.is_exact(sampling)
        log_probs = completion.log_probs or [0.0] * len(completion.token_ids)
        return Generation(completion.token_ids, log_probs, completion.stop_reason, self.weights_version, exact=exact)

    async def _complete(
        self, dialect: Dialect, prompt_ids: list[int], sampling: Sampling, session: str = ""
    ) -> Completion:
        model = self._model or ""
        if dialect.api == "completions":
            path, body = _COMPLETIONS, completion_request(model, prompt_ids, sampling, dialect)
        else:
            path, body = _CHAT, chat_request(model, self._reader.read(prompt_ids), sampling, dialect)
        return read_completion(await self._server.request(path, body, session=session), sampling)

    def _encode_completion(self, completion: Completion, sampling: Sampling) -> Generation:
        """Encode a text-only completion with the local tokenizer."""
        ids = self._chat.encode(completion.text)
        if completion.stop_reason == "stop":
            ids.append(self._chat.close_id)
        if not ids:
            raise EngineFailure("The server returned no text.")
        reason = "length" if len(ids) > sampling.max_tokens else completion.stop_reason
        ids = ids[: sampling.max_tokens]
        return Generation(ids, [0.0] * len(ids), reason, self.weights_version, exact=False)

    async def _score(self, ids: list[int], response_ids: list[int]) -> list[float]:
        await self._negotiate()
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        return read_prompt_logprobs(await self._server.request(_COMPLETIONS, body), response_ids)

    async def _fetch_model(self) -> str:
        """List the server's models; select one if none was named, and remember its maximum length."""
        try:
            response: Any = await self._server.request("/models")
        except ServerRefused:
            if self._model is None:
                raise
            return self._model  # not every host has this endpoint
        models = response.get("data") if isinstance(response, dict) else None
        cards = {str(card.get("id")): card for card in models or () if isinstance(card, dict)}
        if self._model is None:
            if len(cards) != 1:
                names = ", ".join(sorted(cards)[:8]) or "none"
                raise ConfigError(
                    f"The server at {self._server.name} has these models: {names}. Choose one with model=."
                )
            self._model = next(iter(cards))
        card: dict[str, Any] = cards.get(self._model, {})
        if type(card.get("max_model_len")) is int:
            self._max_model_len = card["max_model_len"]
        return str(card.get("root") or self._model)

    async def _negotiate(self) -> Dialect:
        """Detect the server's dialect once. A failure is not remembered: the server may still be starting."""
        async with self._dialect_lock:
            if self._dialect is None:
                await self._fetch_model()
                self._dialect = await self._detect_dialect()
            return self._dialect

    async def _detect_dialect(self) -> Dialect:
        dialects = [Dialect(), Dialect("chat", ids="none"), Dialect("chat", "max_completion_tokens", ids="none")]
        refusals: list[ServerRefused] = []
        for dialect in dialects:
            if self._api not in ("auto", dialect.api):
                continue
            try:
                return await self._probe(dialect, refusals)
            except ServerRefused as error:
                if error.status not in _UNSUPPORTED:
                    raise
                refusals.append(error)
        raise refusals[-1]

    async def _probe(self, dialect: Dialect, refusals: list[ServerRefused]) -> Dialect:
        """Request a few tokens in this dialect; returns it with what the response shows of the server."""
        if dialect.api == "chat":
            self.why_inexact = f"The server takes messages and returns text. {refusals[0] if refusals else ''}".strip()
            prompt = self._reader.chat.open([{"role": "user", "content": "Hi"}])
            await self._complete(dialect, prompt, Sampling(max_tokens=16))
            return dialect
        completion = await self._complete(dialect, _PROBE_PROMPT, _PROBE_SAMPLING)
        if completion.token_ids is None or completion.log_probs is None:
            self.why_inexact = "The server returns text without token ids or log-probs."
            return replace(dialect, ids="none" if completion.token_ids is None else dialect.ids)
        if completion.prompt_ids is not None and completion.prompt_ids != _PROBE_PROMPT:
            raise EngineFailure("The server changed the tokens of the prompt, so its samples cannot be trusted.")
        self._check_tokenizer(completion)
        named = await self._complete(replace(dialect, ids="in names"), _PROBE_PROMPT, _PROBE_SAMPLING)
        processed = min(completion.log_probs) > -1e-4
        if not processed:
            self.why_inexact = (
                "The server's log-probs are those before temperature, top-p and top-k, so turns sampled with any of "
                "these are not exact. Start vLLM with --logprobs-mode processed_logprobs."
            )
        return replace(dialect, ids="in lists" if named.token_ids is None else "in names", processed=processed)

    def _check_tokenizer(self, completion: Completion) -> None:
        """Raise if the tokenizer is that of another model, which would silently turn every response into nonsense."""
        if self.tokenizer is None:
            return
        decoded = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        # Tokenizers differ in leading spaces and in how they show incomplete characters.
        if "\ufffd" not in decoded + completion.text and "".join(decoded.split()) != "".join(completion.text.split()):
            raise ConfigError(
                f"The tokenizer does not belong to the server's model: the same tokens decode to {completion.text!r} "
                f"there and to {decoded!r} here. Pass tokenizer=, the folder or id of the served model."
            )

    @cached_property
    def _chat(self) -> Chat:
        if self.tokenizer is None:
            raise ConfigError(
                "The server returns only text, so a tokenizer is needed to count tokens: pass tokenizer=."
            )
        return Chat(self.tokenizer)

    @cached_property
    def _reader(self) -> MessageReader:
        if self.tokenizer is None:
            raise ConfigError(
                "The server takes only messages, so a tokenizer is needed to count tokens: pass tokenizer=."
            )
        return MessageReader(self.tokenizer)


def _add_api_version(url: str) -> str:
    """The URL, with `/v1` appended if it has no path.

    Example:
        >>> _add_api_version("http://127.0.0.1:8000"), _add_api_version("https://host/api/v1/")
        ('http://127.0.0.1:8000/v1', 'https://host/api/v1')
    """
    url = url.rstrip("/")
    return url if "/" in url.partition("://")[2] else f"{url}/v1"
