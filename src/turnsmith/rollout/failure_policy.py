"""What to do with an episode in which something went wrong, cause by cause.

Faults of the infrastructure (a crash, a stall, a lost process) say nothing about the model, so they never count as its
behaviour. What the model itself brings about (an unreadable call, a limit it ran into) is behaviour, and leaving it out
would teach the model that it costs nothing. The defaults keep to that; docs/failures.md has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum

from turnsmith.config import FailuresConfig
from turnsmith.errors import ConfigError
from turnsmith.trajectory import Decision, Outcome, Trajectory

_USUAL_RETRIES = 2
_WORKER_RETRIES = 8
_MOST_RETRIES = 100


class Cause(StrEnum):
    """Why an episode may not count as it is."""

    ENVIRONMENT = "environment"
    """The environment or the reward function raised, or broke its contract."""
    TIMEOUT = "timeout"
    """One call of the environment did not come back in time."""
    TOOL = "tool"
    """A tool failed inside; the model was told so and went on."""
    PARSE = "parse"
    """The model wrote a tool call that cannot be read; it was told so and went on."""
    LIMIT = "limit"
    """The episode reached one of its limits: turns, tokens, tool calls or time."""
    ENGINE = "engine"
    """The engine failed, or its server is gone."""
    WORKER = "worker"
    """The process that ran the environment or the episode is gone."""

    @property
    def is_fault(self) -> bool:
        """Whether this is a fault of the infrastructure that ended the episode."""
        return self in (Cause.ENVIRONMENT, Cause.TIMEOUT, Cause.ENGINE, Cause.WORKER)


_OF_OUTCOME = {
    Outcome.ENVIRONMENT_FAILED: Cause.ENVIRONMENT,
    Outcome.REWARD_FAILED: Cause.ENVIRONMENT,
    Outcome.ENVIRONMENT_TIMEOUT: Cause.TIMEOUT,
    Outcome.WORKER_LOST: Cause.WORKER,
    Outcome.ENGINE_FAILED: Cause.ENGINE,
    Outcome.TURN_LIMIT: Cause.LIMIT,
    Outcome.TOKEN_LIMIT: Cause.LIMIT,
    Outcome.TURN_TOKEN_LIMIT: Cause.LIMIT,
    Outcome.TOOL_CALL_LIMIT: Cause.LIMIT,
    Outcome.TIME_LIMIT: Cause.LIMIT,
}
_ACTIONS = {
    "keep": Decision.KEPT,
    "mask": Decision.MASKED,
    "drop": Decision.DROPPED,
    "penalise": Decision.PENALISED,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """How often to try again, and what becomes of the last attempt.

    Example:
        >>> Policy.read("environment", "retry:3,drop")
        Policy(retries=3, decision=<Decision.DROPPED: 'dropped'>, penalty=0.0)
        >>> Policy.read("parse", "penalise:-0.5").penalty
        -0.5
        >>> Policy.read("engine", "keep")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: failures.engine='keep' would train on a fault of the infrastructure as if the \
model had done it: use retry, mask or drop.
    """

    retries: int = 0
    decision: Decision = Decision.KEPT
    penalty: float = 0.0
    """Added to the reward of an episode that is penalised."""

    @classmethod
    def read(cls, cause: str, text: str) -> Policy:
        """The policy that a setting says, such as `retry:3`, `retry:3,drop`, `mask` or `penalise:-1`."""
        first, comma, then = (part.strip() for part in text.partition(","))
        retries = 0
        if first.partition(":")[0].strip() == "retry":
            retries = _retries(cause, first, text)
            first = then if comma else ("mask" if Cause(cause).is_fault else "keep")
        elif comma:
            raise _unreadable(cause, text)
        word, colon, value = first.partition(":")
        decision = _ACTIONS.get(word.strip())
        if decision is None or bool(colon) != (decision is Decision.PENALISED):
            raise _unreadable(cause, text)
        _refuse(cause, text, decision)
        return cls(retries, decision, _penalty(cause, value, text) if colon else 0.0)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """One `Policy` for each cause.

    Example:
        >>> FailurePolicy.of(FailuresConfig(limit="mask")).limit.decision.value
        'masked'
        >>> FailurePolicy().environment
        Policy(retries=2, decision=<Decision.MASKED: 'masked'>, penalty=0.0)
    """

    environment: Policy = Policy(_USUAL_RETRIES, Decision.MASKED)
    timeout: Policy = Policy(_USUAL_RETRIES, Decision.MASKED)
    tool: Policy = Policy()
    parse: Policy = Policy()
    limit: Policy = Policy()
    engine: Policy = Policy(_USUAL_RETRIES, Decision.MASKED)
    worker: Policy = Policy(_WORKER_RETRIES, Decision.MASKED)

    @classmethod
    def of(cls, config: FailuresConfig) -> FailurePolicy:
        """The policy that a run's settings say; one that cannot be read is a `ConfigError`."""
        return cls(**{cause.value: Policy.read(cause.value, getattr(config, cause.value)) for cause in Cause})

    @property
    def drops(self) -> bool:
        """Whether any cause throws away whole groups."""
        return any(getattr(self, item.name).decision is Decision.DROPPED for item in fields(self))

    def for_evaluation(self) -> FailurePolicy:
        """The same for faults; what the model itself does wrong is what an evaluation measures, and always counts."""
        return replace(self, tool=Policy(), parse=Policy(), limit=Policy())

    def decide(self, trajectory: Trajectory) -> tuple[Cause | None, Policy]:
        """What went wrong in an attempt, and what to do about it; where nothing did, it is kept.

        Example:
            >>> FailurePolicy().decide(Trajectory(outcome=Outcome.WORKER_LOST))[0].value
            'worker'
            >>> FailurePolicy().decide(Trajectory(outcome=Outcome.TURN_LIMIT))
            (None, Policy(retries=0, decision=<Decision.KEPT: 'kept'>, penalty=0.0))
        """
        kept = Policy()
        for cause in causes_of(trajectory):
            policy: Policy = getattr(self, cause.value)
            if policy != kept:
                return cause, policy
        return None, kept


def causes_of(trajectory: Trajectory) -> list[Cause]:
    """Everything that went wrong in an attempt, the most serious first.

    Example:
        >>> calls = {"tool_calls": [{"name": "search", "ok": False, "failure": "ConnectionError"}]}
        >>> causes_of(Trajectory(outcome=Outcome.TURN_LIMIT, infos=[calls, {"format_problem": "not_json"}]))
        [<Cause.TOOL: 'tool'>, <Cause.LIMIT: 'limit'>, <Cause.PARSE: 'parse'>]
    """
    ended = _OF_OUTCOME.get(trajectory.outcome or Outcome.ENGINE_FAILED)
    found = [ended] if ended is not None and ended.is_fault else []
    if any("failure" in call for info in trajectory.infos for call in info.get("tool_calls", ())):
        found.append(Cause.TOOL)
    found += [ended] if ended is not None and not ended.is_fault else []
    if any("format_problem" in info for info in trajectory.infos):
        found.append(Cause.PARSE)
    return found


def _retries(cause: str, word: str, text: str) -> int:
    _, colon, number = word.partition(":")
    if not colon:
        return _USUAL_RETRIES
    if not number.strip().isdecimal() or not 1 <= int(number) <= _MOST_RETRIES:
        raise _unreadable(cause, text)
    return int(number)


def _penalty(cause: str, value: str, text: str) -> float:
    try:
        penalty = float(value)
    except ValueError:
        raise _unreadable(cause, text) from None
    if not -1e6 <= penalty < 0:
        raise ConfigError(f"failures.{cause}={text!r}: a penalty is added to the reward, so it must be below 0.")
    return penalty


def _refuse(cause: str, text: str, decision: Decision) -> None:
    told = f"failures.{cause}={text!r} would train on a fault of the infrastructure as if the model had done it: use"
    if Cause(cause).is_fault and decision is Decision.KEPT:
        raise ConfigError(f"{told} retry, mask or drop.")
    if cause == Cause.ENGINE and decision is Decision.PENALISED:
        raise ConfigError(f"{told} retry, mask or drop.")


def _unreadable(cause: str, text: str) -> ConfigError:
    return ConfigError(
        f"failures.{cause}={text!r} cannot be read: write keep, mask, drop, penalise:-1, retry, retry:3, or what "
        "follows the retries as well, such as retry:3,drop."
    )
