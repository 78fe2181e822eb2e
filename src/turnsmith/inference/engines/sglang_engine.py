"""Engine for an SGLang server, through its native `/generate` endpoint: token ids in, token ids and log-probs out.

SGLang's OpenAI-compatible endpoint returns only text, so tokens would not be exact there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.sglang_protocol import generate_request, read_generation, read_scores, score_request
from turnsmith.inference.http_client import HttpClient
from turnsmith.inference.weights import is_folder

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights


class SGLangEngine:
    """Generates with an SGLang server. Tested against SGLang's source, not against a running server: see
    `sglang_protocol`.

    Args:
        url: Where the server is, such as `http://127.0.0.1:30000`.
        api_key: None: what the environment variable `OPENAI_API_KEY` holds, if anything.
        timeout: Most seconds for one turn.
        retries: How often to ask again when the server is busy or the connection breaks.
        max_concurrency: Most turns asked for at a time; the others wait.

    Example:
        >>> import asyncio
        >>> engine = SGLangEngine("http://127.0.0.1:9", retries=0)
        >>> asyncio.run(engine.generate([1, 2], Sampling(), session="episode-1"))
        Traceback (most recent call last):
        turnsmith.errors.EngineFailure: The server at http://127.0.0.1:9 cannot be reached: ...
        >>> engine.close()
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 4,
        max_concurrency: int = 64,
    ) -> None:
        self.weights_version = 0
        """Of the last generation; the server counts."""
        self._server = HttpClient(
            url, api_key=api_key, timeout=timeout, retries=retries, max_concurrency=max_concurrency
        )

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; `session` is the routing key, by which SGLang keeps turns of an episode together."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        # Without an id of our own: asked again after a broken connection, it would be refused as one that is taken.
        body = generate_request(list(prompt_ids), sampling) | {"routing_key": session}
        said = read_generation(await self._server.share(self._server.ask("/generate", body, session=session)), sampling)
        self.weights_version = said.weights_version
        return said

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """The log-prob of each response token after the prompt, at temperature 1."""
        if not response_ids:
            return []
        body = score_request(list(prompt_ids), list(response_ids))
        return read_scores(await self._server.share(self._server.ask("/generate", body)), response_ids)

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Let the server load new weights. It always lets the turns it is at end first, with the old ones.

        Args:
            source: A folder that the server can see, with all weights.
            version: What tokens that the new weights sample are marked with.
            drain: Makes no difference: SGLang always does.
        """
        if not is_folder(source):
            raise EngineFailure("Over HTTP weights cannot be sent: save them to a folder that the server can see.")
        body = {"model_path": str(source), "weight_version": str(version), "flush_cache": True}
        answer = await self._server.share(self._server.ask("/update_weights_from_disk", body))
        if not (isinstance(answer, dict) and answer.get("success")):
            raise EngineFailure(f"SGLang did not take the weights in {source}: {answer}.")
        self.weights_version = version

    def model_folder(self) -> str:
        """Where the server says that its tokenizer comes from."""
        told: Any = self._server.run(self._server.ask("/model_info"))
        path = (told.get("tokenizer_path") or told.get("model_path")) if isinstance(told, dict) else None
        if not path:
            raise EngineFailure("The server does not say which model it has: is it SGLang's?")
        return str(path)

    def close(self) -> None:
        """Drop all connections; whoever still waits for tokens gets an EngineFailure. Safe to call twice."""
        self._server.close()
