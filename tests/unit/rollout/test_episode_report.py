"""Reports of several workers add up to the report of all their episodes."""

from __future__ import annotations

import pytest

from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.trajectory import Decision, Outcome, Trajectory, TurnRecord

EPISODES = [
    Trajectory(
        episode_id=f"{number // 4}-{number % 4}",
        group_id=str(number // 4),
        actions=["a"],
        rewards=[float(number % 3)],
        infos=[
            {"tool_calls": [{"ok": False, "failure": "OSError"}, {"ok": True}], "format_problem": "not_json"},
            {"success": number % 2 == 0} if number > 4 else {},
        ],
        turns=[TurnRecord(0, 1, "length" if number % 5 == 0 else "stop", 0)],
        outcome=[Outcome.COMPLETED, Outcome.TURN_LIMIT, Outcome.ENGINE_FAILED][number % 3],
        error="no answer" if number % 3 == 2 else "",
        decision=Decision.MASKED if number % 3 == 2 else Decision.KEPT,
        attempt=number % 2,
    )
    for number in range(12)
]


@pytest.mark.parametrize("split", [0, 1, 5, 12])
def test_two_reports_add_up_to_that_of_all_episodes(split: int) -> None:
    first, second = report_of(EPISODES[:split]), report_of(EPISODES[split:])
    before = vars(report_of(EPISODES[:split]))
    assert first + second == report_of(EPISODES)
    assert vars(first) == before, "neither side is changed"


def test_success_is_counted_only_where_the_environment_reports_it() -> None:
    assert (report_of(EPISODES[:3]) + report_of(EPISODES[3:5])).successes is None
    assert (report_of(EPISODES[:3]) + report_of(EPISODES[3:])).successes == 2
    assert (report_of(EPISODES[3:]) + EpisodeReport()).successes == 2


def test_a_report_is_shown_in_one_line() -> None:
    assert repr(report_of(EPISODES)) == "EpisodeReport(4 completed, 4 engine_failed, 4 turn_limit, reward 0.5)"
    assert repr(EpisodeReport()) == "EpisodeReport(no episodes)"


TOOL_METRICS = {"tools/calls", "tools/errors", "tools/failures", "tools/format_problems"}


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, {}),
        ({"tool_calls": [{"ok": False}, {"ok": True}]}, {"tools/calls": 2, "tools/errors": 1}),
        ({"format_problem": "not_json"}, {"tools/format_problems": 1}),
    ],
)
def test_tool_metrics_are_there_if_a_tool_was_called_or_a_call_could_not_be_parsed(info, expected) -> None:
    metrics = report_of([Trajectory(actions=["a"], rewards=[1.0], infos=[info], outcome=Outcome.COMPLETED)]).metrics()
    found = {name: value for name, value in metrics.items() if name in TOOL_METRICS}
    assert found == (dict.fromkeys(TOOL_METRICS, 0) | expected if expected else {})


def test_a_filtered_group_is_listed_once_and_no_group_that_was_kept_or_failed_is() -> None:
    filtered = [Trajectory(group_id="f", rewards=[1.0], decision=Decision.FILTERED) for _ in range(3)]
    kept = [Trajectory(group_id="k", rewards=[1.0], outcome=Outcome.COMPLETED) for _ in range(3)]
    report = report_of([*filtered, *kept, Trajectory(group_id="lost", decision=Decision.DROPPED)])
    assert report.filtered_groups == ["f"]
    assert report.groups == {"f": [1.0] * 3, "k": [1.0] * 3, "lost": []}
    assert report.metrics()["groups/filtered"] == 1


def test_identical_conversations_share_an_entry_with_a_short_key() -> None:
    said = [("a", "1"), ("b", "2"), ("a", "3")]
    report = report_of(
        [Trajectory(episode_id=name, actions=[text], rewards=[0.0], outcome=Outcome.COMPLETED) for text, name in said]
    )
    assert sorted(report.conversations.values()) == [["1", "3"], ["2"]]
    assert {len(key) for key in report.conversations} == {16}, "8 bytes as hex: they cross the wire at each step"
