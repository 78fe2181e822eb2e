"""Scoring functions of verl that are never called: what a model writes would run in them, or silently score 0."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

_PACKAGE = "verl.utils.reward_score"
_REASONS = {
    "math_verify": "scores 0 whatever its processes have not compared in time: use the reward `math`",
    "prime_math": "evaluates what the model wrote as Python (CVE-2026-6878): use the reward `math`",
    "prime_code": "runs the model's programs outside of a sandbox: use the reward `tests`, or `run_python` in your own",
    "sandbox_fusion": "runs the model's programs on a server of yours that it cannot be told: use the reward `tests`",
    "geo3k": "evaluates what the model wrote with sympy: use the reward `math`",
}
"""By module, see `_PACKAGE`."""
SOURCES = {
    **dict.fromkeys(("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime"), "prime_math"),
    **dict.fromkeys(("numina_synthetic_amc", "numina_cn_k12", "numina_olympiads"), "prime_math"),
    **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), "prime_code"),
    "hiyouga/geometry3k": "geo3k",
}
"""The data sources for which verl's `default_compute_score` chooses one of these modules."""


def why_unsafe(module: str, data_source: Any = None) -> str:
    """Why a scoring function of this module is not called for rows of this source; empty if it is.

    Example:
        >>> why_unsafe("verl.utils.reward_score.gsm8k"), why_unsafe("verl.utils.reward_score", "apps")[:16]
        ('', "runs the model's")
    """
    if not is_verls(module):
        return ""
    place = SOURCES.get(data_source, "") if module == _PACKAGE else module.removeprefix(f"{_PACKAGE}.").split(".")[0]
    return _REASONS.get(place, "")


def is_verls(module: str) -> bool:
    """Whether verl ships the scoring functions of this module."""
    return f"{module}.".startswith(f"{_PACKAGE}.")


def module_of(function: Any) -> str:
    """Where a function, or what it stands for, was defined."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(inspect.unwrap(function), "__module__", ""))
