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
