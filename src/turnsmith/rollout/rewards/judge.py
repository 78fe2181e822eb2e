"""A judge model as reward function, behind any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.openai_protocol import Completion, Dialect, chat_request, read_completion
from turnsmith.inference.http_client import HttpClient, ServerRefused, is_url
from turnsmith.rollout.rewards.judge_prompt import judge_messages, read_score, retry_messages
from turnsmith.rollout.rewards.reward_function import RewardFailure
from turnsmith.trajectory import Trajectory

_MAX_RECORDED_CHARS = 2000


class JudgeReward:
    """The score that a judge model gives an episode; pass it to the trainer as `reward_fn`.

    The judge reads the whole conversation and the rubric, and answers with a score. Its answer is recorded in the
    `info` of the episode's last turn, under `judge`. If the judge cannot be reached or gives no score in the range, the
    episode ends as `reward_failed`; it never gets a reward of 0 instead.

    Args:
        url: The base URL of the judge's API, such as `http://127.0.0.1:8000/v1`.
        rubric: What to grade by, in words.
        model: The name of the judge model; None: the only one that the server has.
        low: The lowest score.
        high: The highest score.
        api_key: None: the environment variable `OPENAI_API_KEY`, if it is set.
        temperature: Sampling temperature; at 0, the same episode gets the same score as far as the server allows.
        max_tokens: Token limit of an answer; an answer that is cut off is a failure.
        timeout: Seconds to wait for an answer, including retries.
        retries: How often to retry when the server is busy or the connection breaks.
        max_concurrency: Maximum number of concurrent requests per process that runs episodes.
        extra: More fields for the request body, as the server knows them: vLLM's `{"structured_outputs": {"regex":
            ...}}` makes sure that a small judge answers with a score.

    Example:
        >>> judge = JudgeReward("http://127.0.0.1:9", "Was the customer helped?", model="any", retries=0)
        >>> judge.reward_range
        (0.0, 1.0)
        >>> asyncio.run(judge(Trajectory(messages=[{"role": "user", "content": "Hi"}])))
        Traceback (most recent call last):
        turnsmith.errors.EngineFailure: The server at http://127.0.0.1:9/v1 cannot be reached: ... Is it running there?
        >>> judge.close()
    """

    __name__ = "JudgeReward"

    def __init__(
        self,
        url: str,
        rubric: str,
        *,
        model: str | None = None,
        low: float = 0.0,
        high: float = 1.0,
        api_key: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 512,
        timeout: float = 120.0,
        retries: int = 4,
        max_concurrency: int = 16,
        extra: dict[str, Any] | None = None,
    ) -> None:
        if not is_url(url):
            raise ConfigError(
                f"{url!r} is not a URL: serve the judge (`vllm serve MODEL`) and pass http://host:8000/v1."
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"low is {low:g} and high is {high:g}; both must be finite, and low below high.")
        if not rubric.strip():
            raise ConfigError("The rubric is empty: describe what makes an episode good.")
        self.rubric, self.model = rubric, model
        self.extra = dict(extra or {})
        self.reward_range = (float(low), float(high))
        self._sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
        self._settings: dict[str, Any] = {
            "url": url if "/" in url.rstrip("/").partition("://")[2] else f"{url.rstrip('/')}/v1",
            "api_key": api_key,
            "timeout": timeout,
            "retries": retries,
            "max_concurrency": max_concurrency,
        }
        self._open()

    async def __call__(self, trajectory: Trajectory) -> float:
        """The score of an episode.

        Raises:
            RewardFailure: The judge gave no score.
            EngineFailure: The judge could not be reached.
        """
        score, answer = await self._server.run_async(self._judge(trajectory))
        trajectory.reward_shares = {"judge": score}
        if trajectory.infos:
            trajectory.infos[-1] = {**trajectory.infos[-1], "judge": answer[-_MAX_RECORDED_CHARS:]}
        return score

    def close(self) -> None:
        """Close all connections."""
        self._server.close()

    async def _judge(self, trajectory: Trajectory) -> tuple[float, str]:
        low, high = self.reward_range
        messages = judge_messages(trajectory, self.rubric, low, high)
        answer = await self._ask(messages)
        if answer.stop_reason == "length":  # a score in it may be a quotation from the episode
            raise RewardFailure(f"The judge had not given a score after {self._sampling.max_tokens} tokens.")
        score = read_score(answer.text, low, high)
        if score is None:
            retry = await self._ask(retry_messages(messages, answer.text, low, high))
            score = read_score(retry.text, low, high) if retry.stop_reason != "length" else None
        if score is None:
            raise RewardFailure(
                f"The judge gave no score from {low:g} to {high:g} when asked twice. Its first answer ended with "
                f"{answer.text[-120:]!r}."
            )
        return score, answer.text

    async def _ask(self, messages: list[dict[str, str]]) -> Completion:
        model = await self._model_name()
        try:
            body = chat_request(model, messages, self._sampling, self._dialect) | self.extra
            return read_completion(await self._server.request("/chat/completions", body), self._sampling)
        except ServerRefused as refused:
            newer = Dialect("chat", "max_completion_tokens")
            if "max_completion_tokens" not in str(refused) or self._dialect == newer:
                raise
            self._dialect = newer  # some models reject the older field `max_tokens`
            return await self._ask(messages)

    async def _model_name(self) -> str:
        async with self._lock:
            if self.model is None:
                reply: Any = await self._server.request("/models")
                cards = reply.get("data") if isinstance(reply, dict) else None
                names = [str(card.get("id")) for card in cards or () if isinstance(card, dict)]
                if len(names) != 1:
                    listed = f" ({', '.join(sorted(names)[:8])})" if names else ""
                    raise EngineFailure(
                        f"The server at {self._server.name} has {len(names)} models{listed}: pass model=... to name "
                        "the judge."
                    )
                self.model = names[0]
            return self.model

    def _open(self) -> None:
        settings = dict(self._settings)
        self._server = HttpClient(settings.pop("url"), **settings)
        self._lock = asyncio.Lock()
        self._dialect = Dialect("chat")

    def __getstate__(self) -> dict[str, Any]:
        # Connections cannot be pickled: each process opens its own.
        return {name: value for name, value in vars(self).items() if name not in ("_server", "_lock", "_dialect")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
