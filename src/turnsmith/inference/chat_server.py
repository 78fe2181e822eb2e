"""A model behind `/chat/completions` of an OpenAI-compatible server, for judges and players, which need only text."""

from __future__ import annotations

import asyncio
from typing import Any, Unpack

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.openai_protocol import Completion, Dialect, chat_request, read_completion
from turnsmith.inference.http_client import HttpClient, ServerOptions, ServerRefused


class ChatServer:
    """Asks one model of a server.

    Args:
        url: The base URL of its API; without a path, `/v1` is appended.
        model: The name of the model; None: the only one that the server has.
        purpose: What the model is for, in the error that asks for its name.
        extra: More fields for the request body.
        server: `api_key`, `timeout`, `retries` and `max_concurrency`, see `ServerOptions`.

    Example:
        >>> server = ChatServer("http://127.0.0.1:9", model="any", retries=0)
        >>> asyncio.run(server.ask([{"role": "user", "content": "Hi"}], Sampling()))
        Traceback (most recent call last):
        turnsmith.errors.EngineFailure: The server at http://127.0.0.1:9/v1 cannot be reached: ... Is it running there?
        >>> server.close()
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        purpose: str = "the model",
        extra: dict[str, Any] | None = None,
        **server: Unpack[ServerOptions],
    ) -> None:
        has_path = "/" in url.rstrip("/").partition("://")[2]
        self.client = HttpClient(url if has_path else f"{url.rstrip('/')}/v1", **server)
        self.model, self._purpose, self._extra = model, purpose, dict(extra or {})
        self._dialect = Dialect("chat")
        self._lock = asyncio.Lock()

    async def ask(self, messages: list[dict[str, str]], sampling: Sampling) -> Completion:
        """The model's answer; from any event loop."""
        return await self.client.run_async(self.complete(messages, sampling))

    async def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> Completion:
        """The model's answer; on the event loop of the client only."""
        model = await self._model_name()
        try:
            body = chat_request(model, messages, sampling, self._dialect) | self._extra
            return read_completion(await self.client.request("/chat/completions", body), sampling)
        except ServerRefused as refused:
            newer = Dialect("chat", "max_completion_tokens")
            if "max_completion_tokens" not in str(refused) or self._dialect == newer:
                raise
            self._dialect = newer  # some models reject the older field `max_tokens`
            return await self.complete(messages, sampling)

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    async def _model_name(self) -> str:
        async with self._lock:
            if self.model is None:
                reply: Any = await self.client.request("/models")
                cards = reply.get("data") if isinstance(reply, dict) else None
                names = [str(card.get("id")) for card in cards or () if isinstance(card, dict)]
                if len(names) != 1:
                    listed = f" ({', '.join(sorted(names)[:8])})" if names else ""
                    raise EngineFailure(
                        f"The server at {self.client.name} has {len(names)} models{listed}: pass model=... to name "
                        f"{self._purpose}."
                    )
                self.model = names[0]
            return self.model
