"""What is sent to an OpenAI-compatible server and what comes back, as plain functions of dictionaries.

Two endpoints: `/completions` takes token ids, and from a server that has vLLM's fields it gives token ids and log-probs
back; `/chat/completions` takes messages and gives text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling

_TOKEN_NAME = "token_id:"
"""What vLLM puts before a token's id where OpenAI has the token's text."""
_STOPS = {"stop": "stop", "length": "length", "abort": "abort", "tool_calls": "stop", "function_call": "stop"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server wants to be asked."""

    api: Literal["completions", "chat"] = "completions"
    length_field: str = "max_tokens"
    """What it calls the most tokens to sample; OpenAI's newer models have `max_completion_tokens`."""
    ids: Literal["in names", "in lists", "none"] = "in lists"
    """Where it gives the ids of sampled tokens: in the names of its log-probs, in a list of their own (together with
    the whole prompt), or not at all."""
    processed: bool = False
    """Whether its log-probs are of the distribution after temperature, top-p and top-k."""

    def is_exact(self, sampling: Sampling) -> bool:
        """Whether its log-probs are those of the distribution that is sampled from."""
        plain = sampling.temperature in (0.0, 1.0) and sampling.top_p == 1.0 and sampling.top_k <= 0
        return self.ids != "none" and (self.processed or plain)


@dataclass(slots=True)
class Completion:
    """One answer, as far as the server tells it."""

    text: str
    stop_reason: str
    token_ids: list[int] | None = None
    log_probs: list[float] | None = None
    prompt_ids: list[int] | None = None


def completion_request(model: str, prompt_ids: list[int], sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The body of a request to `/completions`.

    Everything that bends the distribution is said, because a server fills in what its model's makers recommend.

    Example:
        >>> body = completion_request("m", [1, 2], Sampling(max_tokens=4, seed=7, stop_token_ids=(2,)), Dialect())
        >>> body["prompt"], body["stop_token_ids"], body["seed"], body["return_token_ids"]
        ([1, 2], [2], 7, True)
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt_ids,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if dialect.ids != "none":
        # The caller alone says where to stop. Not elsewhere: SGLang then does not stop at all.
        body |= {"ignore_eos": True, "logprobs": 0, "return_tokens_as_token_ids": True}
    if dialect.ids == "in lists":
        body["return_token_ids"] = True
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def chat_request(model: str, messages: list[dict[str, str]], sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The body of a request to `/chat/completions`: only what OpenAI itself has, unless top-k is asked for.

    Example:
        >>> chat_request("m", [{"role": "user", "content": "Hi"}], Sampling(max_tokens=4), Dialect("chat"))[
        ...     "max_tokens"
        ... ]
        4
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        dialect.length_field: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.top_k > 0:
        body["top_k"] = sampling.top_k
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def read_answer(answer: Any, sampling: Sampling) -> Completion:
    """What a server said, from either endpoint; a sentence for an answer that contradicts itself.

    Example:
        >>> names = {"tokens": ["token_id:5", "token_id:2"], "token_logprobs": [-0.5, -0.25]}
        >>> answer = {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": names}]}
        >>> said = read_answer(answer, Sampling())
        >>> said.token_ids, said.log_probs, said.stop_reason
        ([5, 2], [-0.5, -0.25], 'stop')
    """
    choice = _only_choice(answer)
    told = choice.get("finish_reason")
    if told not in _STOPS:
        raise EngineFailure(f"The server ended the answer with finish_reason={told!r}, which turnsmith does not know.")
    message = choice.get("message")
    text = choice.get("text") if message is None else _member(message, "content")
    log_probs = choice.get("logprobs")
    names = _member(log_probs, "tokens")
    said = Completion(str(text or ""), _STOPS[told], prompt_ids=choice.get("prompt_token_ids"))
    if choice.get("token_ids") is not None:
        said.token_ids = _ids(choice["token_ids"])
    elif names and all(isinstance(name, str) and name.startswith(_TOKEN_NAME) for name in names):
        said.token_ids = _ids([_number(name) for name in names])
    if said.token_ids is not None:
        said.log_probs = _log_probs(_member(log_probs, "token_logprobs"), said.token_ids)
        _check_count(said.token_ids, sampling, _member(answer.get("usage"), "completion_tokens"))
    return said


def read_prompt_logprobs(answer: Any, response_ids: Sequence[int]) -> list[float]:
    """The log-probs of the last tokens of a prompt, from vLLM's `prompt_logprobs`."""
    told = _only_choice(answer).get("prompt_logprobs")
    if not isinstance(told, list) or len(told) < len(response_ids):
        raise EngineFailure("The server cannot say how likely a given text is: it gives no prompt_logprobs.")
    rows = told[len(told) - len(response_ids) :]
    try:
        return [float(row[str(token)]["logprob"]) for row, token in zip(rows, response_ids, strict=True)]
    except (KeyError, TypeError, ValueError):
        raise EngineFailure("The server's prompt_logprobs are not those of the tokens that were sent.") from None


def _only_choice(answer: Any) -> dict[str, Any]:
    choices = _member(answer, "choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineFailure("The server's answer is not that of an OpenAI-compatible API: it has no single choice.")
    return choices[0]


def _member(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None


def _number(name: str) -> int:
    digits = name.removeprefix(_TOKEN_NAME)
    return int(digits) if digits.isdecimal() and len(digits) < 11 else -1


def _ids(told: Any) -> list[int]:
    if not isinstance(told, list) or not all(type(token) is int and 0 <= token < 2**31 for token in told):
        raise EngineFailure("The server gave token ids that are no token ids.")
    return told


def _log_probs(told: Any, ids: list[int]) -> list[float] | None:
    if told is None:
        return None
    if not isinstance(told, list) or len(told) != len(ids):
        count = len(told) if isinstance(told, list) else "no"
        raise EngineFailure(f"The server gave {len(ids)} token ids but {count} log-probs.")
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in told):
        raise EngineFailure("The server gave a log-prob that is not a finite number.")
    return [float(one) for one in told]


def _check_count(ids: list[int], sampling: Sampling, counted: Any) -> None:
    if not 0 < len(ids) <= sampling.max_tokens:
        raise EngineFailure(f"The server gave {len(ids)} tokens where 1 to {sampling.max_tokens} were asked for.")
    if counted is not None and counted != len(ids):
        raise EngineFailure(f"The server says that it sampled {counted} tokens but gave {len(ids)}.")
