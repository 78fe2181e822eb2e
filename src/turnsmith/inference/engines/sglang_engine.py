"""Engine for an SGLang server, through its native `/generate` endpoint: token ids in, token ids and log-probs out.

SGLang's OpenAI-compatible endpoint returns only text, so tokens would not be exact there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.sglang_protocol import generate_request, read_generation, read_scores, score_request
from turnsmith.inference.http_client import HttpClient, ServerOptions
from turnsmith.inference.weights import is_folder

if TYPE_CHECKING:
    from turnsmith.inference.weights import Weights


class SGLangEngine:
    """Generates with an SGLang server. Tested against SGLang's source, not against a running server: see
    `sglang_protocol`.

    Args:
        url: The server's URL, such as `http://127.0.0.1:30000`.
        server: `api_key`, `timeout`, `retries` and `max_concurrency`, see `ServerOptions`.

    Example:
        >>> import asyncio
        >>> engine = SGLangEngine("http://127.0.0.1:9", retries=0)
        >>> asyncio.run(engine.generate([1, 2], Sampling(), session="episode-1"))
        Traceback (most recent call last):
        turnsmith.errors.EngineFailure: The server at http://127.0.0.1:9 cannot be reached: ...
        >>> engine.close()
    """

    def __init__(self, url: str, **server: Unpack[ServerOptions]) -> None:
        self.weights_version = 0
        """Of the last generation, as the server reported it."""
        self._server = HttpClient(url, **server)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`; `session` is the routing key, by which SGLang sends an episode to one replica."""
        if not prompt_ids:
            raise EngineFailure("The prompt is empty: an engine needs at least one token to continue.")
        # Without a request id of our own: a retry after a broken connection would be rejected as a duplicate.
        body = generate_request(list(prompt_ids), sampling) | {"routing_key": session}
        generation = read_generation(await self._post("/generate", body, session), sampling)
        self.weights_version = generation.weights_version
        return generation

    async def score(self, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> list[float]:
        """Log-prob of each response token given the prompt, at temperature 1."""
        if not response_ids:
            return []
        body = score_request(list(prompt_ids), list(response_ids))
        return read_scores(await self._post("/generate", body), response_ids)

    async def update_weights(self, source: Weights, version: int, *, drain: bool = False) -> None:
        """Make the server load new weights. SGLang always finishes the requests in flight with the old ones first.

        Args:
            source: A folder with all weights, at a path that the server can read.
            version: Version to record for tokens that the new weights sample.
            drain: Has no effect: SGLang always drains.
        """
        if not is_folder(source):
            raise EngineFailure("Weights cannot be sent over HTTP: save them to a folder that the server can read.")
        body = {"model_path": str(source), "weight_version": str(version), "flush_cache": True}
        response = await self._post("/update_weights_from_disk", body)
        if not (isinstance(response, dict) and response.get("success")):
            raise EngineFailure(f"SGLang did not load the weights in {source}: {response}.")
        self.weights_version = version

    def model_name_or_path(self) -> str:
        """The folder or Hugging Face id of the tokenizer, as the server reports it."""
        info: Any = self._server.run(self._server.request("/model_info"))
        path = (info.get("tokenizer_path") or info.get("model_path")) if isinstance(info, dict) else None
        if not path:
            raise EngineFailure("The server does not report its model: is it an SGLang server?")
        return str(path)

    def close(self) -> None:
        """Close all connections; pending requests raise EngineFailure. Safe to call twice."""
        self._server.close()

    async def _post(self, path: str, body: dict[str, Any], session: str = "") -> Any:
        return await self._server.run_async(self._server.request(path, body, session=session))
