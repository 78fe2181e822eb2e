"""Reports of several workers add up to the report of all their episodes."""

from __future__ import annotations

from typing import Any

import pytest

from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.trajectory import Decision, Outcome, TokenBuffer, Trajectory, TurnRecord

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


def test_rewards_are_summed_up_by_their_mean_and_population_deviation() -> None:
    episodes = [Trajectory(actions=["a"], rewards=[reward], outcome=Outcome.COMPLETED) for reward in (1.0, 2.0, 6.0)]
    metrics = report_of(episodes).metrics()
    assert [metrics[f"reward/{name}"] for name in ("mean", "min", "max")] == [3.0, 1.0, 6.0]
    assert metrics["reward/std"] == pytest.approx((14 / 3) ** 0.5)
    assert "success/mean" not in metrics
    assert "turns/cut" not in metrics


def test_turns_are_told_with_the_share_that_was_cut_and_tokens_of_the_model_alone() -> None:
    episodes = []
    for reasons in (["stop", "length", "stop"], ["length"]):
        made = Trajectory(actions=["a"] * len(reasons), rewards=[0.0] * len(reasons), outcome=Outcome.COMPLETED)
        made.tokens.open([1, 2])
        made.turns = [TurnRecord(*made.tokens.append_model([3, 4], [-1.0] * 2), reason, 0) for reason in reasons]
        made.infos = [{"continuation": "opened"}, {"continuation": "bridged"}][: len(reasons)]
        made.infos[-1]["success"] = len(reasons) == 1
        episodes.append(made)
    report = report_of(episodes)
    metrics = report.metrics()
    assert (report.model_tokens, report.cut_turns) == (8, 2)
    assert (metrics["turns/mean"], metrics["turns/cut"], metrics["success/mean"]) == (2.0, 0.5, 0.5)
    assert (metrics["agent/turns_opened"], metrics["agent/turns_bridged"]) == (2, 1)
    assert "agent/branches" not in metrics
    episodes[0].branches = [episodes[1].tokens] * 3
    assert report_of(episodes).metrics()["agent/branches"] == 3


def test_waiting_is_told_in_seconds_of_an_episode() -> None:
    waits = [{"a thread": 1.5, "a sandbox": 0.25}, {"a thread": 0.25}, {}, {}]
    report = report_of([Trajectory(outcome=Outcome.COMPLETED, waits=one) for one in waits])
    assert dict(report.waits) == {"a thread": 1750, "a sandbox": 250}
    assert report.metrics()["time/waiting"] == 0.5
    assert EpisodeReport().waiting_seconds == 0.0
    assert report_of([Trajectory(outcome=Outcome.COMPLETED, waits={"a thread": 1.5})]).waiting_seconds == 1.5
    assert "time/waiting" not in report_of([Trajectory(outcome=Outcome.COMPLETED)]).metrics()


class Unclear:
    def __bool__(self) -> bool:
        raise ValueError("neither")


def test_of_a_mix_an_environment_decides_what_success_is_or_a_reward_above_0_does() -> None:
    def episode(environment: str, reward: float, outcome: Outcome = Outcome.COMPLETED, **info: Any) -> Trajectory:
        return Trajectory(
            actions=["a"], rewards=[reward], infos=[info], outcome=outcome, environment=environment, error="x"
        )

    report = report_of(
        [
            episode("maze", 0.0),
            episode("maze", 0.5),
            episode("maze", -1.0),
            episode("maze", 9.0, Outcome.ENGINE_FAILED),
            episode("quiz", 1.0, success=False),
            episode("quiz", 0.0, success=True),
            episode("quiz", 1.0, success=Unclear()),
            episode("quiz", 1.0),
            episode("lost", 1.0, Outcome.WORKER_LOST),
        ]
    )
    assert report.successes_by_environment() == {"maze": (1, 3), "quiz": (1, 4), "lost": (0, 0)}
    metrics = report.metrics()
    assert metrics["environment/maze/success"] == pytest.approx(1 / 3)
    assert (metrics["environment/maze/reward"], metrics["environment/maze/episodes"]) == (pytest.approx(-1 / 6), 4)
    assert {name for name in metrics if name.startswith("environment/lost")} == {"environment/lost/episodes"}


def test_a_call_counts_as_failed_only_if_it_says_so() -> None:
    report = report_of([Trajectory(infos=[{"tool_calls": [{}, {"ok": True}, {"ok": False}]}])])
    assert (report.tools.calls, report.tools.errors, report.tools.failures) == (3, 1, 0)


def test_groups_are_compared_if_they_have_two_rewards_and_a_name() -> None:
    rewards = {"same": [1.0, 1.0], "other": [0.0, 1.0], "one": [1.0], "": [2.0, 2.0]}
    report = report_of(
        Trajectory(group_id=group, rewards=[reward], outcome=Outcome.COMPLETED)
        for group, listed in rewards.items()
        for reward in listed
    )
    assert sorted(report.compared_groups) == ["other", "same"]
    assert report.constant_groups == ["same"]
    assert report.metrics()["groups/constant"] == 1
    assert report.metrics()["groups/total"] == 4


def test_three_examples_of_each_kind_are_kept() -> None:
    episodes = [
        Trajectory(episode_id=f"e{number}", group_id="g", outcome=Outcome.COMPLETED, infos=[{"format_problem": "x"}])
        for number in range(5)
    ]
    expected = {name: ["e0", "e1", "e2"] for name in ("completed", "format_problem")}
    assert report_of(episodes).examples == expected
    assert (report_of(episodes[:2]) + report_of(episodes[2:])).examples == expected
    assert report_of(episodes).group_examples == {"g": ["e0", "e1", "e2"]}
    assert (report_of(episodes[:2]) + report_of(episodes[2:])).group_examples == {"g": ["e0", "e1", "e2"]}
    assert report_of([episodes[0]] * 2).examples["completed"] == ["e0"], "each once"


def test_failures_are_counted_by_decision_but_kept_and_filtered_episodes_are_none() -> None:
    decisions = [Decision.KEPT, Decision.MASKED, Decision.MASKED, Decision.FILTERED]
    episodes = [Trajectory(decision=one, attempt=1, outcome=Outcome.ENGINE_FAILED, error="x") for one in decisions]
    metrics = report_of(episodes).metrics()
    assert {name: count for name, count in metrics.items() if name.startswith("failures/")} == {
        "failures/masked": 2,
        "failures/retried": 4,
    }
    assert (metrics["episodes/total"], metrics["episodes/engine_failed"]) == (4, 4)


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


def test_the_one_turn_of_one_episode_was_cut() -> None:
    report = EpisodeReport(rewards=[0.0], turns=[1], model_tokens=8, cut_turns=1)
    assert report.metrics()["turns/cut"] == 1.0


def test_a_player_of_whom_only_the_name_is_known_has_said_nothing() -> None:
    metrics = report_of([Trajectory(outcome=Outcome.COMPLETED, others={"rival": {"who": "frozen"}})]).others
    assert metrics == {"rival/replies": 0, "rival/tokens": 0}


def test_a_record_of_tokens_without_a_turn_has_no_share_of_cut_turns() -> None:
    tokens = TokenBuffer()
    tokens.open([1])
    tokens.append_model([2], [-0.5])
    report = report_of([Trajectory(tokens=tokens, outcome=Outcome.COMPLETED)])
    assert (report.model_tokens, report.metrics()["turns/cut"]) == (1, 0.0)
