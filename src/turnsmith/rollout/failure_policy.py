"""What to do with an episode in which something went wrong, by cause.

Infrastructure faults (a crash, a timeout, a lost process) say nothing about the model, so they never count as its
behaviour. What the model causes (an unparseable tool call, a limit reached) is behaviour, and leaving it out would
teach the model that it costs nothing. The defaults follow this; docs/failures.md has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from turnsmith.config import FailuresConfig
from turnsmith.errors import ConfigError
from turnsmith.trajectory import Decision, Outcome, Trajectory

_DEFAULT_RETRIES = 2
_WORKER_RETRIES = 8
_MAX_RETRIES = 100


class Cause(StrEnum):
    """Why an episode may not count as it is."""

    ENVIRONMENT = "environment"
    """The environment or the reward function raised, returned something invalid, or a call to it timed out."""
    TOOL = "tool"
    """A tool failed; the model was shown an error message and went on."""
    PARSE = "parse"
    """The model wrote a tool call that cannot be parsed; it was shown an error message and went on."""
    LIMIT = "limit"
    """The episode reached one of its limits: turns, tokens, tool calls or time."""
    ENGINE = "engine"
    """The engine failed, or its server died."""
    WORKER = "worker"
    """The process that ran the environment or the episode died, or a call to the environment, a tool or the reward
    function never got its turn."""
    INTERNAL = "internal"
    """turnsmith itself failed."""

    @property
    def is_fault(self) -> bool:
        """Whether this is an infrastructure fault, which ends the episode."""
        return self not in (Cause.TOOL, Cause.PARSE, Cause.LIMIT)


_CAUSES = {
    Outcome.ENVIRONMENT_FAILED: Cause.ENVIRONMENT,
    Outcome.REWARD_FAILED: Cause.ENVIRONMENT,
    Outcome.ENVIRONMENT_TIMEOUT: Cause.ENVIRONMENT,
    Outcome.WORKER_LOST: Cause.WORKER,
    Outcome.OVERLOADED: Cause.WORKER,
    Outcome.ENGINE_FAILED: Cause.ENGINE,
    Outcome.INTERNAL_ERROR: Cause.INTERNAL,
    Outcome.TURN_LIMIT: Cause.LIMIT,
    Outcome.TOKEN_LIMIT: Cause.LIMIT,
    Outcome.TURN_TOKEN_LIMIT: Cause.LIMIT,
    Outcome.TOOL_CALL_LIMIT: Cause.LIMIT,
    Outcome.TIME_LIMIT: Cause.LIMIT,
}
_RETRY = r"(?P<retry>retry(?::(?P<retries>\d{1,4}))?(?=,.|$),?)?"
_ACTION = r"(?P<action>keep|mask|drop|stop|penalise:[-+]?\d*\.?\d+(?:e[-+]?\d+)?)?"
_SETTING = re.compile(_RETRY + _ACTION)
_DECISIONS = {
    "keep": Decision.KEPT,
    "mask": Decision.MASKED,
    "drop": Decision.DROPPED,
    "stop": Decision.STOPPED,
    "penalise": Decision.PENALISED,
}


@dataclass(frozen=True, slots=True)
class CausePolicy:
    """How often to retry after one cause, and what to do with the last attempt.

    Example:
        >>> CausePolicy.parse("environment", "retry:3,drop")
        CausePolicy(retries=3, decision=<Decision.DROPPED: 'dropped'>, penalty=0.0)
        >>> CausePolicy.parse("parse", "penalise:-0.5").penalty
        -0.5
        >>> CausePolicy.parse("engine", "keep")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: failures.engine='keep' would train on an infrastructure fault as if the model \
had caused it: use retry, mask or drop.
    """

    retries: int = 0
    decision: Decision = Decision.KEPT
    penalty: float = 0.0
    """Added to the reward of a penalised episode; below 0."""

    @classmethod
    def parse(cls, cause: str, text: str) -> CausePolicy:
        """Parse a setting, such as `retry:3`, `retry:3,drop`, `mask` or `penalise:-1`."""
        match = _SETTING.fullmatch("".join(text.split()))
        if not match or not match[0] or not 1 <= int(match["retries"] or 1) <= _MAX_RETRIES:
            raise ConfigError(
                f"failures.{cause}={text!r} is not valid: write keep, mask, drop, penalise:-1, retry, retry:3, or a "
                "retry with what follows it, such as retry:3,drop."
            )
        retries = int(match["retries"] or _DEFAULT_RETRIES) if match["retry"] else 0
        is_fault, is_internal = Cause(cause).is_fault, cause == Cause.INTERNAL
        action, _, penalty = (match["action"] or ("mask" if is_fault else "keep")).partition(":")
        if (action == "stop") > is_internal:
            raise ConfigError(f"failures.{cause}={text!r}: only failures.internal, a bug of turnsmith, may be stop.")
        if (is_fault and action == "keep") or (cause in (Cause.ENGINE, Cause.INTERNAL) and action == "penalise"):
            raise ConfigError(
                f"failures.{cause}={text!r} would train on an infrastructure fault as if the model had caused it: use "
                "retry, mask or drop."
            )
        if penalty and not -1e6 <= float(penalty) < 0:
            raise ConfigError(f"failures.{cause}={text!r}: a penalty is added to the reward: it must be below 0.")
        return cls(retries, _DECISIONS[action], float(penalty or 0))


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """A `CausePolicy` for each cause.

    Example:
        >>> FailurePolicy.of(FailuresConfig(limit="mask")).limit.decision.value
        'masked'
        >>> FailurePolicy().environment
        CausePolicy(retries=2, decision=<Decision.MASKED: 'masked'>, penalty=0.0)
    """

    environment: CausePolicy = CausePolicy(_DEFAULT_RETRIES, Decision.MASKED)
    tool: CausePolicy = CausePolicy()
    parse: CausePolicy = CausePolicy()
    limit: CausePolicy = CausePolicy()
    engine: CausePolicy = CausePolicy(_DEFAULT_RETRIES, Decision.MASKED)
    worker: CausePolicy = CausePolicy(_WORKER_RETRIES, Decision.MASKED)
    internal: CausePolicy = CausePolicy(0, Decision.STOPPED)

    @classmethod
    def of(cls, config: FailuresConfig) -> FailurePolicy:
        """The policy in a run's config; raises a `ConfigError` if a setting is invalid."""
        return cls(**{cause.value: CausePolicy.parse(cause.value, getattr(config, cause.value)) for cause in Cause})

    @property
    def drops(self) -> bool:
        """Whether any cause drops whole groups."""
        return any(getattr(self, item.name).decision is Decision.DROPPED for item in fields(self))

    def for_evaluation(self) -> FailurePolicy:
        """The same policy for faults; mistakes of the model always count, because they are what is measured."""
        return replace(self, tool=CausePolicy(), parse=CausePolicy(), limit=CausePolicy())

    def decide(self, trajectory: Trajectory) -> tuple[Cause | None, CausePolicy]:
        """The cause that matters in an attempt, if any, and what to do about it; without one, the attempt is kept.

        Example:
            >>> FailurePolicy().decide(Trajectory(outcome=Outcome.WORKER_LOST))[0].value
            'worker'
            >>> FailurePolicy().decide(Trajectory(outcome=Outcome.TURN_LIMIT))
            (None, CausePolicy(retries=0, decision=<Decision.KEPT: 'kept'>, penalty=0.0))
        """
        kept = CausePolicy()
        for cause in causes_of(trajectory):
            policy: CausePolicy = getattr(self, cause.value)
            if policy != kept:
                return cause, policy
        return None, kept


def causes_of(trajectory: Trajectory) -> list[Cause]:
    """Everything that went wrong in an attempt, most serious first.

    Example:
        >>> calls = {"tool_calls": [{"name": "search", "ok": False, "failure": "ConnectionError"}]}
        >>> causes_of(Trajectory(outcome=Outcome.TURN_LIMIT, infos=[calls, {"format_problem": "not_json"}]))
        [<Cause.TOOL: 'tool'>, <Cause.LIMIT: 'limit'>, <Cause.PARSE: 'parse'>]
    """
    ended_by = _CAUSES.get(trajectory.outcome or Outcome.ENGINE_FAILED)
    causes = [Cause.TOOL] if any(_has_failed_tool(info) for info in trajectory.infos) else []
    if ended_by is not None:
        causes.insert(0 if ended_by.is_fault else len(causes), ended_by)
    if any("format_problem" in info for info in trajectory.infos):
        causes.append(Cause.PARSE)
    return causes


def _has_failed_tool(info: Mapping[str, Any]) -> bool:
    return any("failure" in call for call in info.get("tool_calls", ()))
