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

_STOPS = ("stop", "length", "abort")


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """How to sample, in SGLang's words.

    SGLang's `ignore_eos` switches off `stop_token_ids` too. So with stop tokens the model's own end tokens also end the
    turn, whether or not they are among them.

    Example:
        >>> asked = sampling_params(Sampling(max_tokens=4, stop_token_ids=(2,)))
        >>> asked["max_new_tokens"], asked["stop_token_ids"], asked["ignore_eos"]
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
    """The body of a `/generate` request for one turn."""
    return {"input_ids": prompt_ids, "sampling_params": sampling_params(sampling), "return_logprob": True}


def score_request(prompt_ids: list[int], response_ids: list[int]) -> dict[str, Any]:
    """The request for the log-probs of given tokens after a prompt."""
    return {
        "input_ids": [*prompt_ids, *response_ids],
        # Not 0 tokens: then SGLang takes a path of its own. The one that is sampled is thrown away.
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": len(prompt_ids) - 1,
    }


def read_generation(answer: Any, sampling: Sampling) -> Generation:
    """The generation in an answer; a sentence for an answer that contradicts itself.

    SGLang's log-probs are those after temperature but before top-p and top-k, so with either the generation is not
    exact.

    Example:
        >>> facts = {"finish_reason": {"type": "stop", "matched": 2}, "weight_version": "3"}
        >>> facts["output_token_logprobs"] = [[-0.5, 7, None], [-0.25, 2, None]]
        >>> read_generation({"output_ids": [7, 2], "meta_info": facts}, Sampling())
        Generation(token_ids=[7, 2], log_probs=[-0.5, -0.25], stop_reason='stop', weights_version=3, exact=True)
    """
    facts = _facts(answer)
    finish = facts.get("finish_reason")
    reason = finish.get("type") if isinstance(finish, dict) else finish
    if reason not in _STOPS:
        raise EngineFailure(f"SGLang ended the turn with finish_reason={reason!r}, which turnsmith does not know.")
    if reason == "abort":
        told = finish.get("message") if isinstance(finish, dict) else ""
        raise EngineFailure(f"SGLang aborted the turn: {told or 'it gave no reason'}.")
    ids, log_probs = _pairs(facts.get("output_token_logprobs"))
    if ids != list(answer.get("output_ids") or ids):
        raise EngineFailure("SGLang's log-probs are not those of the tokens that it gave.")
    if not 0 < len(ids) <= sampling.max_tokens:
        raise EngineFailure(f"SGLang gave {len(ids)} tokens where 1 to {sampling.max_tokens} were asked for.")
    exact = sampling.top_p == 1.0 and sampling.top_k <= 0
    return Generation(ids, log_probs, reason, _version(facts.get("weight_version")), exact=exact)


def read_scores(answer: Any, response_ids: Sequence[int]) -> list[float]:
    """The log-probs of the last tokens of what was sent."""
    told = _facts(answer).get("input_token_logprobs")
    last = told[len(told) - len(response_ids) :] if isinstance(told, list) and len(told) >= len(response_ids) else None
    ids, log_probs = _pairs(last)
    if ids != list(response_ids):
        raise EngineFailure("SGLang's log-probs are not those of the tokens that were sent.")
    return log_probs


def _facts(answer: Any) -> dict[str, Any]:
    facts = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(facts, dict):
        raise EngineFailure("The answer is not that of SGLang's /generate: it has no meta_info.")
    return facts


def _pairs(told: Any) -> tuple[list[int], list[float]]:
    """Ids and log-probs from SGLang's triples of log-prob, id and text."""
    try:
        ids = [int(token) for _, token, _ in told]
        log_probs = [float(log_prob) for log_prob, _, _ in told]
    except (TypeError, ValueError):
        raise EngineFailure("SGLang gave no log-probs that can be read: one for each token was asked for.") from None
    if not all(map(math.isfinite, log_probs)):
        raise EngineFailure("SGLang gave a log-prob that is not a finite number.")
    return ids, log_probs


def _version(told: Any) -> int:
    """The version that an update of ours set; SGLang starts with the word `default`."""
    return int(told) if isinstance(told, str | int) and str(told).isdecimal() else 0
