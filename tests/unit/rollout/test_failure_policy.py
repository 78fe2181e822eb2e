"""The words of a failure policy, which are refused, and what each makes of an episode."""

from __future__ import annotations

import pytest

from turnsmith.config import FailuresConfig
from turnsmith.errors import ConfigError
from turnsmith.rollout.failure_policy import Cause, CausePolicy, FailurePolicy, causes_of
from turnsmith.trajectory import Decision, Outcome, Trajectory


def test_the_defaults_of_the_settings_are_those_of_the_policy() -> None:
    assert FailurePolicy.of(FailuresConfig()) == FailurePolicy()


@pytest.mark.parametrize(
    ("cause", "text", "policy"),
    [
        ("environment", "retry", CausePolicy(2, Decision.MASKED)),
        ("environment", "retry:3", CausePolicy(3, Decision.MASKED)),
        ("environment", " retry : 3 , drop ", CausePolicy(3, Decision.DROPPED)),
        ("worker", "retry:1,penalise:-2", CausePolicy(1, Decision.PENALISED, -2.0)),
        ("worker", "mask", CausePolicy(0, Decision.MASKED)),
        ("limit", "retry:1", CausePolicy(1, Decision.KEPT)),
        ("limit", "penalise:-0.5", CausePolicy(0, Decision.PENALISED, -0.5)),
        ("limit", "penalise:-1e-3", CausePolicy(0, Decision.PENALISED, -0.001)),
        ("parse", "keep", CausePolicy()),
    ],
)
def test_a_policy_is_parsed(cause: str, text: str, policy: CausePolicy) -> None:
    assert CausePolicy.parse(cause, text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "retries",
        "retry:0",
        "retry:x",
        "retry:101",
        "mask:2",
        "drop,mask",
        "penalise",
        "retry:2,",
        "retry,retry",
        "penalise:nan",
        "penalise:-inf",
        "retry mask",
        ",mask",
    ],
)
def test_an_invalid_setting_is_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(ConfigError, match=r"failures\.limit='.*' is not valid: write keep, mask, drop, penalise:-1"):
        CausePolicy.parse("limit", text)


@pytest.mark.parametrize("text", ["penalise:1", "penalise:0", "penalise:-1e999"])
def test_a_penalty_is_below_0(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be below 0"):
        CausePolicy.parse("parse", text)


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause.is_fault])
def test_a_fault_of_the_infrastructure_is_never_kept(cause: Cause) -> None:
    for text in ("keep", "retry:1,keep"):
        with pytest.raises(ConfigError, match="as if the model had caused it"):
            CausePolicy.parse(cause, text)


def test_a_lost_engine_is_nobodys_behaviour() -> None:
    with pytest.raises(ConfigError, match="as if the model had caused it"):
        CausePolicy.parse("engine", "penalise:-1")
    # Of an environment, a user may know that only bad actions crash it.
    assert CausePolicy.parse("environment", "penalise:-1").penalty == -1.0


def test_every_outcome_that_is_not_behaviour_has_a_cause_and_none_of_them_is_kept() -> None:
    for outcome in Outcome:
        trajectory = Trajectory(outcome=outcome)
        cause, policy = FailurePolicy().decide(trajectory)
        assert (cause is not None and cause.is_fault) == (not outcome.is_behaviour)
        assert (policy.decision is Decision.KEPT) == outcome.is_behaviour
    assert causes_of(Trajectory()) == [Cause.ENGINE]


def test_a_fault_comes_before_a_failed_tool_and_a_limit_after_it() -> None:
    infos = [{"tool_calls": [{"failure": "OSError"}]}]
    assert causes_of(Trajectory(outcome=Outcome.WORKER_LOST, infos=infos)) == [Cause.WORKER, Cause.TOOL]
    assert causes_of(Trajectory(outcome=Outcome.TURN_LIMIT, infos=infos)) == [Cause.TOOL, Cause.LIMIT]


def test_the_first_cause_with_something_to_do_decides() -> None:
    infos = [{"tool_calls": [{"failure": "OSError"}]}, {"format_problem": "not_json"}]
    policy = FailurePolicy.of(FailuresConfig(parse="penalise:-1", limit="mask"))
    assert policy.decide(Trajectory(outcome=Outcome.COMPLETED, infos=infos))[0] is Cause.PARSE
    assert policy.decide(Trajectory(outcome=Outcome.TURN_LIMIT, infos=infos))[0] is Cause.LIMIT
    assert policy.decide(Trajectory(outcome=Outcome.WORKER_LOST, infos=infos))[0] is Cause.WORKER
    assert policy.for_evaluation().decide(Trajectory(outcome=Outcome.TURN_LIMIT, infos=infos))[0] is None


def test_whether_groups_are_dropped() -> None:
    assert not FailurePolicy().drops
    assert FailurePolicy.of(FailuresConfig(worker="retry:2,drop")).drops


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("retry:1", 1),
        ("retry:100", 100),
        ("retry", 2),
        ("retry:0", None),
        ("retry:101", None),
        ("", None),
        ("retry:", None),
    ],
)
def test_retries_are_from_1_to_100(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="is not valid: write keep"):
            CausePolicy.parse("limit", text)
    else:
        assert CausePolicy.parse("limit", text).retries == expected


@pytest.mark.parametrize(("text", "is_good"), [("-1e6", True), ("-0.001", True), ("0", False), ("-1000001", False)])
def test_a_penalty_is_below_0_and_bounded(text: str, is_good: bool) -> None:
    if is_good:
        assert CausePolicy.parse("parse", f"penalise:{text}").penalty == float(text)
    else:
        with pytest.raises(ConfigError, match="it must be below 0"):
            CausePolicy.parse("parse", f"penalise:{text}")
