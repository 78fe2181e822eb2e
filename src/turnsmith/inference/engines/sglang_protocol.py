"""Requests to SGLang's `/generate` endpoint and its responses, as plain functions of dictionaries.

Written against sglang 0.5.12. `tests/unit/inference/test_sglang_engine.py` checks every name against that package's
source and runs its request types. The server itself was not run: it needs a GPU, or a CPU kernel that no package index
has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Generation, Sampling

_STOP_REASONS = ("stop", "length", "abort")


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """Sampling parameters under SGLang's names.

    SGLang's `ignore_eos` also disables `stop_token_ids`. So with stop tokens, the model's own end tokens end the turn
    too, whether or not they are among them.

    Example:
        >>> params = sampling_params(Sampling(max_tokens=4, stop_token_ids=(2,)))
        >>> params["max_new_tokens"], params["stop_token_ids"], params["ignore_eos"]
        (4, [2], False)
    """
    return {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": not sampling.stop_token_ids,
        "sampling_seed": sampling.seed,
    }


def generate_request(prompt_ids: list[int], sampling: Sampling) -> dict[str, Any]:
    """The body of a request to sample one turn."""
    return {"input_ids": prompt_ids, "sampling_params": sampling_params(sampling), "return_logprob": True}


def score_request(prompt_ids: list[int], response_ids: list[int]) -> dict[str, Any]:
    """The body of a request for the log-probs of given tokens after a prompt."""
    return {
        "input_ids": [*prompt_ids, *response_ids],
        # Not 0 tokens, which SGLang handles on a separate code path. The sampled token is discarded.
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": len(prompt_ids) - 1,
    }


def read_generation(response: Any, sampling: Sampling) -> Generation:
    """Read and validate a response to `generate_request`.

    SGLang's log-probs are those after temperature but before top-p and top-k, so with either the generation is not
    exact.

    Example:
        >>> meta_info = {"finish_reason": {"type": "stop", "matched": 2}, "weight_version": "3"}
        >>> meta_info["output_token_logprobs"] = [[-0.5, 7, None], [-0.25, 2, None]]
        >>> read_generation({"output_ids": [7, 2], "meta_info": meta_info}, Sampling())
        Generation(token_ids=[7, 2], log_probs=[-0.5, -0.25], stop_reason='stop', weights_version=3, exact=True)
    """
    meta_info = _meta_info(response)
    finish = meta_info.get("finish_reason")
    reason = finish.get("type") if isinstance(finish, dict) else finish
    if reason not in _STOP_REASONS:
        raise EngineFailure(f"SGLang ended the turn with the unknown finish_reason={reason!r}.")
    if reason == "abort":
        message = finish.get("message") if isinstance(finish, dict) else ""
        raise EngineFailure(f"SGLang aborted the turn: {message or 'it gave no reason'}.")
    ids, log_probs = _split_logprobs(meta_info.get("output_token_logprobs"))
    if ids != list(response.get("output_ids") or ids):
        raise EngineFailure("SGLang returned log-probs of other tokens than it sampled.")
    if not 0 < len(ids) <= sampling.max_tokens:
        raise EngineFailure(f"SGLang returned {len(ids)} tokens; 1 to {sampling.max_tokens} were requested.")
    exact = sampling.top_p == 1.0 and sampling.top_k <= 0
    return Generation(ids, log_probs, reason, _weights_version(meta_info.get("weight_version")), exact=exact)


def read_scores(response: Any, response_ids: Sequence[int]) -> list[float]:
    """Read the log-probs of `response_ids`, the last tokens of a `score_request`."""
    entries = _meta_info(response).get("input_token_logprobs")
    if isinstance(entries, list):
        entries = entries[max(0, len(entries) - len(response_ids)) :]
    ids, log_probs = _split_logprobs(entries)
    if ids != list(response_ids):
        raise EngineFailure("SGLang returned log-probs of other tokens than were sent.")
    return log_probs


def _meta_info(response: Any) -> dict[str, Any]:
    meta_info = response.get("meta_info") if isinstance(response, dict) else None
    if not isinstance(meta_info, dict):
        raise EngineFailure("The response has no meta_info, so it is not from SGLang's /generate endpoint.")
    return meta_info


def _split_logprobs(entries: Any) -> tuple[list[int], list[float]]:
    """Token ids and log-probs from SGLang's (log-prob, id, text) triples."""
    try:
        ids = [int(token) for _, token, _ in entries]
        log_probs = [float(log_prob) for log_prob, _, _ in entries]
    except (TypeError, ValueError):
        raise EngineFailure("SGLang returned no readable log-probs, although one per token was requested.") from None
    if not all(map(math.isfinite, log_probs)):
        raise EngineFailure("SGLang returned a log-prob that is not a finite number.")
    return ids, log_probs


def _weights_version(version: Any) -> int:
    """The version set by `update_weights`; SGLang's initial version is the word `default`."""
    return int(version) if isinstance(version, str | int) and str(version).isdecimal() else 0
