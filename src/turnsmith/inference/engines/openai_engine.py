"""Any OpenAI-compatible server on the seam: `vllm serve`, SGLang's, or a hosted API.

Where the server gives token ids and log-probs (vLLM does), they are exact. Where it gives only text, the text is
encoded with a local tokenizer so that episodes run and tokens can be counted; such a generation says `exact=False`, its
log-probs are zeros, and training refuses it.

Before the first turn the server is asked for a few tokens, to find out which of the two it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.message_reader import MessageReader
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.openai_protocol import (
    Completion,
    Dialect,
    chat_request,
    completion_request,
    read_answer,
    read_prompt_logprobs,
)
from turnsmith.inference.http_client import HttpClient, ServerRefused

_COMPLETIONS, _CHAT = "/completions", "/chat/completions"
_NOT_HERE = (400, 404, 405, 422, 501)
"""How servers say that they lack an endpoint or do not take token ids."""
_ANY_PROMPT = [5, 7, 11]
"""Ids that every vocabulary has, and after which no model is sure of what comes."""
_PROBE = Sampling(max_tokens=4, temperature=1.0, top_k=1)


class OpenAIEngine:
    """Generates with a server that speaks OpenAI's API. Its weights are the server's own, so their version stays 0.

    Args:
        url: Where the API is, such as `http://127.0.0.1:8000/v1`; without a path, `/v1` is added.
        model: Which of its models; None: the only one it has.
        api_key: None: what the environment variable `OPENAI_API_KEY` holds, if anything.
        tokenizer: The model's tokenizer; needed where the server gives only text, and then any will do.
        api: `completions` (token ids in), `chat` (messages in, text out), or `auto`: the first that the server has.
        timeout: Most seconds for one turn.
        retries: How often to ask again when the server is busy or the connection breaks.
        max_concurrency: Most turns asked for at a time; the others wait.

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
        api_key: str | None = None,
        tokenizer: Any = None,
        api: Literal["auto", "completions", "chat"] = "auto",
        timeout: float = 600.0,
        retries: int = 4,
        max_concurrency: int = 64,
    ) -> None:
        if api not in ("auto", "completions", "chat"):
            raise ConfigError(f"There is no api {api!r}: choose completions, chat or auto.")
        self.tokenizer = tokenizer
        self.weights_version = 0
        self.why_inexact = ""
        """Once asked: why generations are not exact, or not always, in a sentence; empty if they are."""
        self._api, self._model = api, model
        self._longest: int | None = None
        self._dialect: Dialect | None = None
        self._meeting = asyncio.Lock()
        self._server = HttpClient(
            _with_version(url), api_key=api_key, timeout=timeout, retries=retries, max_concurrency=max_concurrency
        )

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; `session` goes along as `X-Session-ID`, by which a router keeps episodes together."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        # A copy, because the episode goes on with its own.
        return await self._server.share(self._generate(list(prompt_ids), sampling, session))

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """The log-prob of each response token after the prompt, at temperature 1; a server needs vLLM's
        `prompt_logprobs` for it.
        """
        if not response_ids:
            return []
        return await self._server.share(self._score([*prompt_ids, *response_ids], list(response_ids)))

    def model_folder(self) -> str:
        """Where the server says that its model comes from, or else what it calls it."""
        return self._server.run(self._describe())

    def close(self) -> None:
        """Drop all connections; whoever still waits for tokens gets an EngineFailure. Safe to call twice."""
        self._server.close()

    async def _generate(self, prompt_ids: list[int], sampling: Sampling, session: str) -> Generation:
        dialect = await self._meet()
        if self._longest is not None and dialect.api == "completions":
            room = self._longest - len(prompt_ids)
            if room < 1:
                raise EngineFailure(
                    f"The prompt has {len(prompt_ids)} tokens, and the server takes {self._longest} in all."
                )
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        said = await self._ask(dialect, prompt_ids, sampling, session)
        if said.token_ids is None:
            return self._count(said, sampling)
        exact = said.log_probs is not None and dialect.is_exact(sampling)
        log_probs = said.log_probs or [0.0] * len(said.token_ids)
        return Generation(said.token_ids, log_probs, said.stop_reason, self.weights_version, exact=exact)

    async def _ask(self, dialect: Dialect, prompt_ids: list[int], sampling: Sampling, session: str = "") -> Completion:
        model = self._model or ""
        if dialect.api == "completions":
            body = completion_request(model, prompt_ids, sampling, dialect)
            return read_answer(await self._server.ask(_COMPLETIONS, body, session=session), sampling)
        body = chat_request(model, self._reader.read(prompt_ids), sampling, dialect)
        return read_answer(await self._server.ask(_CHAT, body, session=session), sampling)

    def _count(self, said: Completion, sampling: Sampling) -> Generation:
        """Text as tokens of the local tokenizer, for the episode to go on with and to count."""
        ids = self._chat.encode(said.text)
        if said.stop_reason == "stop":
            ids.append(self._chat.close_id)
        if not ids:
            raise EngineFailure("The server gave no text.")
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        reason = "length" if cut else said.stop_reason
        return Generation(ids, [0.0] * len(ids), reason, self.weights_version, exact=False)

    async def _score(self, ids: list[int], response_ids: list[int]) -> list[float]:
        await self._meet()
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        return read_prompt_logprobs(await self._server.ask(_COMPLETIONS, body), response_ids)

    async def _describe(self) -> str:
        """Ask which models there are; choose one if none was named, and remember how long its sequences may be."""
        try:
            answer: Any = await self._server.ask("/models")
        except ServerRefused:
            if self._model is None:
                raise
            return self._model  # not all hosts let one ask
        told = answer.get("data") if isinstance(answer, dict) else None
        cards = {str(card.get("id")): card for card in told or () if isinstance(card, dict)}
        if self._model is None:
            if len(cards) != 1:
                names = ", ".join(sorted(cards)[:8]) or "none"
                raise ConfigError(f"Say which model of the server at {self._server.name} to use: it has {names}.")
            self._model = next(iter(cards))
        card: dict[str, Any] = cards.get(self._model, {})
        if type(card.get("max_model_len")) is int:
            self._longest = card["max_model_len"]
        return str(card.get("root") or self._model)

    async def _meet(self) -> Dialect:
        """Find out, once, how to ask this server. A failure is forgotten: it may still be starting."""
        async with self._meeting:
            if self._dialect is None:
                await self._describe()
                self._dialect = await self._first_that_works()
            return self._dialect

    async def _first_that_works(self) -> Dialect:
        ways = [Dialect(), Dialect("chat", ids="none"), Dialect("chat", "max_completion_tokens", ids="none")]
        refused: list[ServerRefused] = []
        for way in ways:
            if self._api not in ("auto", way.api):
                continue
            try:
                return await self._try(way, refused)
            except ServerRefused as error:
                if error.status not in _NOT_HERE:
                    raise
                refused.append(error)
        raise refused[-1]

    async def _try(self, way: Dialect, refused: list[ServerRefused]) -> Dialect:
        """Ask for a few tokens, with only the likeliest allowed: then log-probs after top-k are all 0."""
        if way.api == "chat":
            self.why_inexact = f"The server takes messages and gives text. {refused[0] if refused else ''}".strip()
            await self._ask(way, self._reader.chat.open([{"role": "user", "content": "Hi"}]), Sampling(max_tokens=16))
            return way
        said = await self._ask(way, _ANY_PROMPT, _PROBE)
        if said.token_ids is None or said.log_probs is None:
            self.why_inexact = "The server gives text without token ids or log-probs."
            return replace(way, ids="none" if said.token_ids is None else way.ids)
        if said.prompt_ids is not None and said.prompt_ids != _ANY_PROMPT:
            raise EngineFailure("The server changed the prompt's tokens, so nothing that it samples could be trusted.")
        self._check_tokenizer(said)
        named = await self._ask(replace(way, ids="in names"), _ANY_PROMPT, _PROBE)
        processed = min(said.log_probs) > -1e-4
        if not processed:
            self.why_inexact = (
                "The server's log-probs are those before temperature, top-p and top-k, so turns sampled with any of "
                "these are not exact. Start vLLM with --logprobs-mode processed_logprobs."
            )
        return replace(way, ids="in lists" if named.token_ids is None else "in names", processed=processed)

    def _check_tokenizer(self, said: Completion) -> None:
        """A tokenizer of another model would turn every answer into nonsense without an error."""
        if self.tokenizer is None:
            return
        ours = self.tokenizer.decode(said.token_ids, skip_special_tokens=True)
        # Tokenizers differ in spaces at the start, and half a letter is shown in many ways.
        if "\ufffd" not in ours + said.text and "".join(ours.split()) != "".join(said.text.split()):
            raise ConfigError(
                f"The tokenizer is not that of the server's model: the same tokens are {said.text!r} there and "
                f"{ours!r} here. Pass tokenizer=, the folder or the id of the model that is served."
            )

    @cached_property
    def _chat(self) -> Chat:
        if self.tokenizer is None:
            raise ConfigError(
                "The server gives only text, so a tokenizer is needed to count its tokens: pass tokenizer=."
            )
        return Chat(self.tokenizer)

    @cached_property
    def _reader(self) -> MessageReader:
        if self.tokenizer is None:
            raise ConfigError("The server takes only messages, so a tokenizer is needed to count tokens.")
        return MessageReader(self.tokenizer)


def _with_version(url: str) -> str:
    """The URL, with `/v1` if it has no path.

    Example:
        >>> _with_version("http://127.0.0.1:8000"), _with_version("https://host/api/v1/")
        ('http://127.0.0.1:8000/v1', 'https://host/api/v1')
    """
    url = url.rstrip("/")
    return url if "/" in url.partition("://")[2] else f"{url}/v1"
