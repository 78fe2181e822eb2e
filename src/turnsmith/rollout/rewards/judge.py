"""A judge model as reward function, behind any OpenAI-compatible server."""

from __future__ import annotations

import math
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.inference.chat_server import ChatServer
from turnsmith.inference.engine import Sampling
from turnsmith.inference.http_client import ServerOptions, is_url
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
        >>> import asyncio
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
        self._url = url
        self._options = ServerOptions(
            api_key=api_key, timeout=timeout, retries=retries, max_concurrency=max_concurrency
        )
        self._open()

    async def __call__(self, trajectory: Trajectory) -> float:
        """The score of an episode.

        Raises:
            RewardFailure: The judge gave no score.
            EngineFailure: The judge could not be reached.
        """
        score, answer = await self._server.client.run_async(self._judge(trajectory))
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
        answer = await self._server.complete(messages, self._sampling)
        if answer.stop_reason == "length":  # a score in it may be a quotation from the episode
            raise RewardFailure(f"The judge had not given a score after {self._sampling.max_tokens} tokens.")
        score = read_score(answer.text, low, high)
        if score is None:
            again = retry_messages(messages, answer.text, low, high)
            retry = await self._server.complete(again, self._sampling)
            score = read_score(retry.text, low, high) if retry.stop_reason != "length" else None
        if score is None:
            raise RewardFailure(
                f"The judge gave no score from {low:g} to {high:g} when asked twice. Its first answer ended with "
                f"{answer.text[-120:]!r}."
            )
        return score, answer.text

    def _open(self) -> None:
        self._server = ChatServer(self._url, model=self.model, purpose="the judge", extra=self.extra, **self._options)

    def __getstate__(self) -> dict[str, Any]:
        # Connections cannot be pickled: each process opens its own.
        return {name: value for name, value in vars(self).items() if name != "_server"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
