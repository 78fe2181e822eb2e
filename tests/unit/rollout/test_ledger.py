"""Every dispatched episode ends in one decision, or the step stops with an error that names both sides."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from turnsmith.errors import TrainingFailure
from turnsmith.rollout.ledger import Attempt, Ledger, LedgerEntry, StepLedger, unsettled_episodes
from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision, Outcome, TokenBuffer, Trajectory


def entry(name: str, decision: Decision = Decision.KEPT, *attempts: Attempt) -> LedgerEntry:
    return LedgerEntry(name, name.partition("-")[0], decision, list(attempts) or [Attempt("completed", 5, 1.0)])


def test_a_step_balances_and_its_record_has_everything() -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0", "a-1", "b-0", "b-1"])
    failed = Attempt("environment_failed", 3, 0.5)
    ledger.end([entry("a-0"), entry("a-1", Decision.KEPT, failed, Attempt("completed", 7, 1.0))])
    ledger.end([entry("b-0", Decision.PENALISED), entry("b-1", Decision.MASKED, failed, failed, failed)])
    record = ledger.close(4, ["a-0", "a-1", "b-0"]).as_dict()
    assert json.loads(json.dumps(record)) == record
    assert {name: record[name] for name in ("step", "dispatched", "trained", "masked", "dropped", "carried")} == {
        "step": 4,
        "dispatched": 4,
        "trained": 3,
        "masked": 1,
        "dropped": 0,
        "carried": [],
    }
    assert record["decisions"] == {"kept": 2, "penalised": 1, "masked": 1}
    assert record["outcomes"] == {"completed": 3, "environment_failed": 1}
    assert record["given_up"] == {"environment_failed": 3}
    assert record["tokens"] == {"kept": 12, "penalised": 5, "masked": 3, "retried": 9}
    assert record["seconds"] == {"kept": 2.0, "penalised": 1.0, "masked": 0.5, "retried": 1.5}
    assert [one["episode"] for one in record["episodes"]] == ["a-1", "b-0", "b-1"]


def failing(ledger: Ledger, trained: list[str]) -> str:
    with pytest.raises(TrainingFailure) as raised:
        ledger.close(1, trained)
    return str(raised.value)


def test_an_episode_without_an_end_stops_the_step() -> None:
    ledger = Ledger()
    ledger.dispatch([f"a-{n}" for n in range(8)])
    ledger.end([entry("a-0")])
    error = failing(ledger, ["a-0"])
    assert (
        "8 dispatched + 0 carried in = 8, but 1 trained + 0 masked + 0 dropped + 0 filtered + 0 carried over = 1."
        in error
    )
    assert "Dispatched, but never reported as ended: a-1, a-2, a-3, a-4, a-5 and 2 more." in error


@pytest.mark.parametrize(
    ("ended", "trained", "problem"),
    [
        ([entry("a-0"), entry("a-0"), entry("a-1")], ["a-0", "a-1"], "Ended twice: a-0."),
        ([entry("a-0"), entry("a-1"), entry("x-0")], ["a-0", "a-1"], "Ended, but never dispatched: x-0."),
        ([entry("a-0"), entry("a-1")], ["a-0"], "Kept, but not in the batch: a-1."),
        ([entry("a-0"), entry("a-1", Decision.MASKED)], ["a-0", "a-1"], "In the batch, but masked: a-1."),
        ([entry("a-0"), entry("a-1")], ["a-0", "a-1", "y-0"], "In the batch, but never reported as ended: y-0."),
        ([entry("a-0"), entry("a-1")], ["a-0", "a-1", "a-1"], "In the batch twice: a-1."),
    ],
)
def test_what_is_on_one_side_only_stops_the_step(ended: list[LedgerEntry], trained: list[str], problem: str) -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0", "a-1"])
    ledger.end(ended)
    assert problem in failing(ledger, trained)


def test_an_episode_is_not_dispatched_twice() -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0", "a-0"])
    ledger.end([entry("a-0")])
    assert "Dispatched twice: a-0." in failing(ledger, ["a-0"])


def test_an_episode_lost_with_its_worker_has_one_attempt_more() -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0", "a-1"])
    ledger.lose(["a-0", "a-1"], seconds=2.0)
    ledger.end([entry("a-0"), entry("a-1")])
    step = ledger.close(1, ["a-0", "a-1"])
    assert step.trained == 2
    assert step.given_up == {Outcome.WORKER_LOST.value: 2}


def test_of_an_episode_that_had_ended_on_a_lost_worker_only_the_last_attempt_is_replaced() -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0"])
    ledger.end([entry("a-0", Decision.KEPT, Attempt("environment_failed", 1, 1.0), Attempt("completed", 2, 2.0))])
    ledger.lose(["a-0"], seconds=3.0)
    ledger.end([entry("a-0", Decision.KEPT, Attempt("completed", 5, 1.0))])
    step = ledger.close(1, ["a-0"])
    assert step.given_up == {"environment_failed": 1, Outcome.WORKER_LOST.value: 1}


def test_a_schedule_that_runs_ahead_carries_episodes_over() -> None:
    ledger = Ledger(may_carry=True)
    ledger.dispatch(["a-0", "b-0", "c-0"])
    ledger.end([entry("a-0"), entry("b-0")])
    first = ledger.close(1, ["a-0"])
    assert (first.dispatched, first.trained, sorted(first.carried)) == (3, 1, ["b-0", "c-0"])
    again = Ledger(unsettled_episodes([first.as_dict()]), may_carry=True)  # the run was stopped here, and goes on
    again.end([entry("b-0"), entry("c-0", Decision.MASKED)])
    second = again.close(2, ["b-0"])
    assert (second.carried_in, second.dispatched, second.trained, second.carried) == (2, 0, 1, [])


def test_what_a_resumed_run_carried_in_is_dispatched_again_and_counts_once() -> None:
    ledger = Ledger(["a-0", "a-1"], may_carry=True)
    ledger.dispatch(["a-0", "a-1", "b-0", "b-1"])
    ledger.end([entry("a-0"), entry("a-1")])
    record = ledger.close(5, ["a-0", "a-1"])
    assert (record.dispatched, record.carried_in, record.trained, record.carried) == (2, 2, 2, ["b-0", "b-1"])
    assert record.as_dict()["replayed"] == 2
    ledger.dispatch(["a-0"])
    ledger.end([entry("b-0"), entry("b-1")])
    ledger.dispatch(["b-0"])
    with pytest.raises(TrainingFailure, match="Dispatched twice: b-0"):
        ledger.close(6, ["b-0", "b-1"])


def test_what_was_carried_in_is_dispatched_again_once_only() -> None:
    ledger = Ledger(["a-0"], may_carry=True)
    ledger.dispatch(["a-0"])
    ledger.dispatch(["a-0"])
    ledger.end([entry("a-0")])
    assert "Dispatched twice: a-0." in failing(ledger, ["a-0"])


def test_an_entry_has_the_first_300_characters_of_its_error() -> None:
    assert replace(entry("a-0"), error="x" * 400).as_dict()["error"] == "x" * 300


def test_a_step_has_the_details_of_at_most_200_episodes() -> None:
    ledger, names = Ledger(), [f"a-{number}" for number in range(250)]
    ledger.dispatch(names)
    ledger.end(entry(name, Decision.MASKED) for name in names)
    record = ledger.close(1, []).as_dict()
    assert (record["masked"], len(record["episodes"])) == (250, 200)


def test_an_attempt_that_was_lost_has_no_tokens() -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0"])
    ledger.lose(["a-0"], seconds=2.0)
    ledger.end([entry("a-0", Decision.MASKED, Attempt("worker_lost"))])
    step = ledger.close(1, [])
    assert (step.tokens, step.seconds) == ({"retried": 0, "masked": 0}, {"retried": 2.0, "masked": 0.0})
    assert repr(step) == "StepLedger(step 1: 1 dispatched, 1 masked, 1 attempts retried)"


def test_an_entry_of_an_episode_that_was_tried_twice() -> None:
    tokens = TokenBuffer()
    tokens.open([1])
    tokens.append_model([2, 3], [0.0, 0.0])
    first = Trajectory(outcome=Outcome.WORKER_LOST, error="killed", tokens=tokens, seconds=2.0)
    last = Trajectory(outcome=Outcome.COMPLETED, tokens=tokens, seconds=3.0, episode_id="a-0", group_id="a", attempt=1)
    made = LedgerEntry.of(EpisodeResult(last, [first]))
    assert made.attempts == [Attempt("worker_lost", 2, 2.0), Attempt("completed", 2, 3.0)]
    assert (made.error, made.decision, made.is_plain) == ("killed", Decision.KEPT, False)


def test_seconds_are_rounded_to_milliseconds_and_a_lost_episode_took_none_unless_told() -> None:
    ledger = Ledger()
    ledger.dispatch(["a-0", "a-1"])
    ledger.lose(["a-0"])
    ledger.lose(["a-1"], 2.0)
    ledger.end([entry(name, Decision.KEPT, Attempt("completed", 1, 0.12345)) for name in ("a-0", "a-1")])
    step = ledger.close(1, ["a-0", "a-1"])
    assert step.as_dict()["seconds"] == {"retried": 2.0, "kept": 0.247}


def test_each_step_counts_anew() -> None:
    ledger = Ledger(["a-0"], may_carry=True)
    ledger.dispatch(["a-0", "b-0", "c-0"])
    ledger.end([entry("a-0"), entry("b-0")])
    first = ledger.close(1, ["a-0", "b-0"])
    assert (first.dispatched, first.carried_in, first.replayed, first.carried) == (2, 1, 1, ["c-0"])
    ledger.dispatch(["d-0"])
    ledger.end([entry("c-0"), entry("d-0")])
    second = ledger.close(2, ["c-0", "d-0"])
    assert (second.dispatched, second.carried_in, second.replayed, second.carried) == (1, 1, 0, [])


def test_a_step_without_episodes_has_counted_nothing() -> None:
    empty = StepLedger(3)
    assert repr(empty) == "StepLedger(step 3: no episodes)"
    assert {value for value in empty.as_dict().values() if isinstance(value, int)} == {0, 3}
    assert Ledger().close(3, []) == empty
