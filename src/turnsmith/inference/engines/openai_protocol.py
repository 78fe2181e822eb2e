"""Requests to an OpenAI-compatible server and its responses, as plain functions of dictionaries.

Two endpoints: `/completions` takes token ids and, on a server with vLLM's extra fields, returns token ids and
log-probs; `/chat/completions` takes messages and returns text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling

_TOKEN_ID_PREFIX = "token_id:"
"""vLLM writes `token_id:5` where OpenAI has the token's text."""
_STOP_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "tool_calls": "stop", "function_call": "stop"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The variant of OpenAI's API that a server speaks."""

    api: Literal["completions", "chat"] = "completions"
    length_field: str = "max_tokens"
    """Its name for the maximum number of tokens; OpenAI's newer models have `max_completion_tokens`."""
    ids: Literal["in names", "in lists", "none"] = "in lists"
    """Where it returns the ids of sampled tokens: in the token names of its log-probs, in a separate list (which comes
    with the whole prompt), or nowhere."""
    processed: bool = False
    """Whether its log-probs are those after temperature, top-p and top-k."""

    def is_exact(self, sampling: Sampling) -> bool:
        """Whether its log-probs are those of the distribution that is sampled from."""
        plain = sampling.temperature in (0.0, 1.0) and sampling.top_p == 1.0 and sampling.top_k <= 0
        return self.ids != "none" and (self.processed or plain)


@dataclass(slots=True)
class Completion:
    """One completion; what the server does not return is None."""

    text: str
    stop_reason: str
    token_ids: list[int] | None = None
    log_probs: list[float] | None = None
    prompt_ids: list[int] | None = None
    tokens: int | None = None
    """How many tokens it has, as the server says."""


def completion_request(model: str, prompt_ids: list[int], sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The body of a request to `/completions`.

    It sets every sampling parameter, because a server would fill in those that the model's authors recommend.

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
        # Only the caller's stop tokens count. Not sent to text-only servers: SGLang would then never stop.
        body |= {"ignore_eos": True, "logprobs": 0, "return_tokens_as_token_ids": True}
    if dialect.ids == "in lists":
        body["return_token_ids"] = True
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


def chat_request(model: str, messages: list[dict[str, str]], sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The body of a request to `/chat/completions`, with OpenAI's own fields only, plus top-k if it is set.

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


def read_completion(response: Any, sampling: Sampling) -> Completion:
    """Read and validate a response of either endpoint.

    Example:
        >>> logprobs = {"tokens": ["token_id:5", "token_id:2"], "token_logprobs": [-0.5, -0.25]}
        >>> response = {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": logprobs}]}
        >>> completion = read_completion(response, Sampling())
        >>> completion.token_ids, completion.log_probs, completion.stop_reason
        ([5, 2], [-0.5, -0.25], 'stop')
    """
    choice = _single_choice(response)
    reason = choice.get("finish_reason")
    if reason not in _STOP_REASONS:
        raise EngineFailure(f"The server ended the completion with the unknown finish_reason={reason!r}.")
    message = choice.get("message")
    text = choice.get("text") if message is None else _get(message, "content")
    completion = Completion(str(text or ""), _STOP_REASONS[reason], prompt_ids=choice.get("prompt_token_ids"))
    reported = _get(response.get("usage"), "completion_tokens")
    completion.tokens = reported if type(reported) is int and reported >= 0 else None
    names = _get(choice.get("logprobs"), "tokens")
    if choice.get("token_ids") is not None:
        completion.token_ids = _check_ids(choice["token_ids"])
    elif names and all(isinstance(name, str) and name.startswith(_TOKEN_ID_PREFIX) for name in names):
        completion.token_ids = _check_ids([_id_from_name(name) for name in names])
    if completion.token_ids is not None:
        log_probs = _get(choice.get("logprobs"), "token_logprobs")
        completion.log_probs = None if log_probs is None else _check_log_probs(log_probs, completion.token_ids)
        _check_count(completion.token_ids, sampling, reported)
    return completion


def read_prompt_logprobs(response: Any, response_ids: Sequence[int]) -> list[float]:
    """Read the log-probs of `response_ids`, the last tokens of the prompt, from vLLM's `prompt_logprobs`."""
    entries = _single_choice(response).get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) < len(response_ids):
        raise EngineFailure("The server cannot score a given text: it returns no prompt_logprobs.")
    entries = entries[len(entries) - len(response_ids) :]
    try:
        return [float(entry[str(token)]["logprob"]) for entry, token in zip(entries, response_ids, strict=True)]
    except (KeyError, TypeError, ValueError):
        raise EngineFailure("The server returned prompt_logprobs of other tokens than were sent.") from None


def _single_choice(response: Any) -> dict[str, Any]:
    choices = _get(response, "choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineFailure(
            "The response does not have exactly one choice, so it is not from an OpenAI-compatible API."
        )
    return choices[0]


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None


def _id_from_name(name: str) -> int:
    digits = name.removeprefix(_TOKEN_ID_PREFIX)
    return int(digits) if digits.isdecimal() and len(digits) < 11 else -1


def _check_ids(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < 2**31 for token in ids):
        raise EngineFailure("The server returned invalid token ids.")
    return ids


def _check_log_probs(log_probs: Any, ids: list[int]) -> list[float]:
    if not isinstance(log_probs, list) or len(log_probs) != len(ids):
        count = len(log_probs) if isinstance(log_probs, list) else "no"
        raise EngineFailure(f"The server returned {len(ids)} token ids but {count} log-probs.")
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in log_probs):
        raise EngineFailure("The server returned a log-prob that is not a finite number.")
    return [float(value) for value in log_probs]


def _check_count(ids: list[int], sampling: Sampling, reported: Any) -> None:
    if not 0 < len(ids) <= sampling.max_tokens:
        raise EngineFailure(f"The server returned {len(ids)} tokens; 1 to {sampling.max_tokens} were requested.")
    if reported is not None and reported != len(ids):
        raise EngineFailure(f"The server reports {reported} sampled tokens but returned {len(ids)}.")
