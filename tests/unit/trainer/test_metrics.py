"""What a step says of itself: which episodes count, and how verl's names become ours."""

from __future__ import annotations

import json

import numpy

from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.trainer.diagnostics.context import step_record
from turnsmith.trajectory import Outcome, Trajectory


def episode(outcome: Outcome | None, *rewards: float, score: float | None = None, error: str = "") -> Trajectory:
    return Trajectory(actions=["a"] * len(rewards), rewards=list(rewards), outcome=outcome, score=score, error=error)


def test_rewards_and_turns_count_only_episodes_that_may_be_trained_on() -> None:
    report = report_of(
        [
            episode(Outcome.COMPLETED, 0.0, 1.0),
            episode(Outcome.TURN_LIMIT, 0.5),
            episode(Outcome.ENVIRONMENT_FAILED, 9.0, error="the door broke"),
            episode(Outcome.REWARD_FAILED, 9.0, error="no number"),
        ]
    )
    assert report.rewards == [1.0, 0.5]
    assert report.turns == [2, 1]
    assert report.outcomes == {"completed": 1, "turn_limit": 1, "environment_failed": 1, "reward_failed": 1}
    assert report.first_error == "the door broke"


def test_a_score_counts_instead_of_the_environment_rewards() -> None:
    assert report_of([episode(Outcome.COMPLETED, 1.0, 1.0, score=-3.0)]).rewards == [-3.0]


def test_an_episode_without_an_end_is_a_fault() -> None:
    report = report_of([episode(None, 1.0)])
    assert report.outcomes == {"engine_failed": 1}
    assert report.rewards == []


def test_reports_of_several_workers_add_up_and_stay_as_they_were() -> None:
    one = report_of([episode(Outcome.COMPLETED, 1.0)])
    other = report_of([episode(Outcome.COMPLETED, 0.0), episode(Outcome.ENGINE_FAILED, error="no answer")])
    total = sum([one, other], EpisodeReport())
    assert total.outcomes == {"completed": 2, "engine_failed": 1}
    assert total.rewards == [1.0, 0.0]
    assert total.first_error == "no answer"
    assert one.rewards == [1.0]


def test_the_record_of_a_step() -> None:
    report = report_of(
        [
            episode(Outcome.COMPLETED, 0.0, 2.0),
            episode(Outcome.COMPLETED, 0.0),
            episode(Outcome.ENGINE_FAILED),
        ]
    )
    verl_metrics = {"actor/entropy": 1.5, "timing_s/gen": 0.25, "timing_s/step": 2, "something/else": 7.0}
    record = step_record(3, 1, verl_metrics, report)
    assert record == {
        "step": 3,
        "epoch": 1,
        "reward/mean": 1.0,
        "reward/min": 0.0,
        "reward/max": 2.0,
        "reward/std": 1.0,
        "turns/mean": 1.5,
        "episodes/total": 3,
        "episodes/completed": 2,
        "episodes/engine_failed": 1,
        "entropy": 1.5,
        "time/generate": 0.25,
        "time/step": 2.0,
    }


def test_a_step_without_a_usable_episode_has_a_record_without_rewards() -> None:
    record = step_record(1, 0, {}, report_of([episode(Outcome.ENGINE_FAILED)]))
    assert record == {"step": 1, "epoch": 0, "episodes/total": 1, "episodes/engine_failed": 1}


def test_what_verl_measures_of_the_hardware_is_recorded_and_what_it_cannot_measure_is_not() -> None:
    metrics = {
        "perf/throughput": 1500.0,
        "perf/mfu/actor": 0.4,
        "actor/perf/max_memory_allocated_gb": 61.5,
        "actor/perf/max_memory_reserved_gb": 0.0,
    }
    record = step_record(1, 0, metrics, EpisodeReport())
    assert {name: value for name, value in record.items() if name.startswith("perf/")} == {
        "perf/tokens_per_second": 1500.0,
        "perf/mfu": 0.4,
        "perf/memory_gib": 61.5,
    }


def test_numbers_of_numpy_become_plain_ones() -> None:
    metrics = {"actor/grad_norm": numpy.float32(0.5), "actor/pg_loss": numpy.array(0.25)}
    record = step_record(1, 0, metrics, EpisodeReport())
    assert json.loads(json.dumps(record)) == record
    assert (record["grad_norm"], record["policy_loss"]) == (0.5, 0.25)


def test_tool_calls_and_format_problems_are_counted() -> None:
    done = episode(Outcome.COMPLETED, 0.0, 0.0, 1.0)
    done.infos = [
        {"tool_calls": [{"name": "a", "ok": True}, {"name": "b", "ok": False, "failure": "it broke"}]},
        {"format_problem": "invalid_json"},
        {},
    ]
    report = report_of([done]) + report_of([done])
    assert (report.tools.calls, report.tools.failures, report.tools.format_problems) == (4, 2, 2)
    record = step_record(1, 0, {}, report)
    assert (record["tools/calls"], record["tools/failures"], record["tools/format_problems"]) == (4, 2, 2)
    assert "tools/calls" not in step_record(1, 0, {}, report_of([episode(Outcome.COMPLETED, 1.0)]))
