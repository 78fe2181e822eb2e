"""A model as the judge of episodes, behind any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.openai_protocol import Completion, Dialect, chat_request, read_completion
from turnsmith.inference.http_client import HttpClient, ServerRefused, is_url
from turnsmith.rollout.rewards.judge_prompt import ask_again, read_score, request
from turnsmith.rollout.rewards.reward_function import RewardFailure
from turnsmith.trajectory import Trajectory

_KEPT = 2000


class JudgeReward:
    """Pays for an episode what a judge model says it is worth; give it to the trainer as `reward_fn`.

    The judge reads the whole conversation and the rubric, and answers with a score. What it said is kept in the last
    `info` of the episode, under `judge`. A judge that cannot be reached, or gives no score in the range, is a failure:
    the episode ends as `reward_failed`, and never as a reward of 0.

    Args:
        url: Where the judge's API is, such as `http://127.0.0.1:8000/v1`.
        rubric: What to grade by, in words.
        model: Which of the server's models; None: the only one it has.
        low: The score of the worst episode.
        high: The score of the best.
        api_key: None: what the environment variable `OPENAI_API_KEY` holds, if anything.
        temperature: 0: the same episode gets the same score, as far as the server can.
        max_tokens: Most tokens of an answer. One that is cut off is a failure.
        timeout: Most seconds for an answer, with all repeats.
        retries: How often to ask again when the server is busy or the connection breaks.
        max_concurrency: Most questions at a time, from each process that runs episodes.
        extra: More fields of the request, as the server knows them: vLLM's `{"structured_outputs": {"regex": ...}}`
            holds a small judge to an answer with a score.

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
            raise ConfigError(f"{url!r} is no URL: serve the judge (`vllm serve MODEL`) and give http://host:8000/v1.")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"A score from {low:g} to {high:g} cannot be: set low below high.")
        if not rubric.strip():
            raise ConfigError("The rubric is empty: say in words what makes an episode good.")
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
            EngineFailure: There was no judge to ask.
        """
        score, said = await self._server.run_async(self._judge(trajectory))
        trajectory.reward_shares = {"judge": score}
        if trajectory.infos:
            trajectory.infos[-1] = {**trajectory.infos[-1], "judge": said[-_KEPT:]}
        return score

    def close(self) -> None:
        """Drop all connections."""
        self._server.close()

    async def _judge(self, trajectory: Trajectory) -> tuple[float, str]:
        low, high = self.reward_range
        messages = request(trajectory, self.rubric, low, high)
        said = await self._ask(messages)
        if said.stop_reason == "length":  # what it quotes of the episode may be all that it has come to
            raise RewardFailure(f"The judge had not come to a score after {self._sampling.max_tokens} tokens.")
        score = read_score(said.text, low, high)
        if score is None:
            again = await self._ask(ask_again(messages, said.text, low, high))
            score = read_score(again.text, low, high) if again.stop_reason != "length" else None
        if score is None:
            raise RewardFailure(
                f"The judge gave no score from {low:g} to {high:g}, though it was asked twice. It ended with "
                f"{said.text[-120:]!r}."
            )
        return score, said.text

    async def _ask(self, messages: list[dict[str, str]]) -> Completion:
        model = await self._named()
        try:
            body = chat_request(model, messages, self._sampling, self._dialect) | self.extra
            return read_completion(await self._server.request("/chat/completions", body), self._sampling)
        except ServerRefused as refused:
            newer = Dialect("chat", "max_completion_tokens")
            if "max_completion_tokens" not in str(refused) or self._dialect == newer:
                raise
            self._dialect = newer  # some models take no other name
            return await self._ask(messages)

    async def _named(self) -> str:
        async with self._meeting:
            if self.model is None:
                told: Any = await self._server.request("/models")
                cards = told.get("data") if isinstance(told, dict) else None
                names = [str(card.get("id")) for card in cards or () if isinstance(card, dict)]
                if len(names) != 1:
                    raise EngineFailure(
                        f"Say which model of the server at {self._server.name} is the judge, as model=...: it has "
                        f"{', '.join(sorted(names)[:8]) or 'none'}."
                    )
                self.model = names[0]
            return self.model

    def _open(self) -> None:
        settings = dict(self._settings)
        self._server = HttpClient(settings.pop("url"), **settings)
        self._meeting = asyncio.Lock()
        self._dialect = Dialect("chat")

    def __getstate__(self) -> dict[str, Any]:
        # Connections do not travel: each process opens its own.
        gone = ("_server", "_meeting", "_dialect")
        return {name: value for name, value in self.__dict__.items() if name not in gone}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
