"""Where each warning begins: what is just enough, and what is just not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.trainer.test_warnings import FLAT, HEALTHY, episode, found, groups, settings, trend

from turnsmith import Outcome, Trajectory
from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.trainer.diagnostics.context import StepContext
from turnsmith.trainer.diagnostics.monitor import StepMonitor, declared_range
from turnsmith.trainer.diagnostics.zero_gradient import cause_of_zero, first_line

VARIED = groups([0, 1], [1, 0.5])


def told(name: str, report: EpisodeReport = VARIED, **more: Any) -> bool:
    record = {key: more.pop(key) for key in list(more) if "/" in key or key in HEALTHY}
    return name in found({**HEALTHY, **record}, report, **more)


def some(flags: list[bool], **more: Any) -> EpisodeReport:
    """Episodes with different rewards, those with a True changed by `more`."""
    return report_of(
        episode(f"0-{number}", number / 100, **(more if flag else {})) for number, flag in enumerate(flags)
    )


def share(yes: int, of: int, **more: Any) -> EpisodeReport:
    return some([number < yes for number in range(of)], **more)


def waited(seconds: float) -> EpisodeReport:
    made = episode("0-0")
    made.waits = {"a thread": seconds}
    return report_of([made])


def calls(failed: int, refused: int, fine: int, unreadable: int = 0) -> EpisodeReport:
    listed = [{"ok": False, "failure": "x"}] * failed + [{"ok": False}] * refused + [{"ok": True}] * fine
    infos = [{"tool_calls": listed}, *[{"format_problem": "x"}] * unreadable]
    return report_of([episode(f"0-{place}", place, info=info) for place, info in enumerate(infos)])


def over(name: str, before: float, now: float) -> dict[str, Any]:
    return trend({name: before}, {name: now})


def moved(**moves: tuple[float, float] | None) -> dict[str, Any]:
    """Metrics that went from their first to their second value; with `__` for the slash."""
    names = {name.replace("__", "/"): move for name, move in moves.items() if move is not None}
    return trend(*({name: move[place] for name, move in names.items()} for place in (0, 1)))


def lengths(
    long: tuple[float, float] | None = (40, 40),
    middle: tuple[float, float] | None = (40, 40),
    mean: tuple[float, float] | None = None,
    reward: tuple[float, float] | None = None,
) -> dict[str, Any]:
    return moved(length__p90=long, length__p50=middle, tokens__response=mean, reward__mean=reward)


def paid(success: float, success_now: float, reward: float, reward_now: float) -> dict[str, Any]:
    return moved(success__mean=(success, success_now), reward__mean=(reward, reward_now))


def terms(
    polite: tuple[float, float], right: tuple[float, float], success: tuple[float, float] | None = (0.5, 0.5)
) -> dict[str, Any]:
    made = moved(reward_term__polite=polite, reward_term__right=right, success__mean=success)
    return {**made, "reward_term/polite": polite[1], "reward_term/right": right[1]}


def alike(
    best: int, *, of: int, others: int = 0, starts: int = 2, first: Iterable[str] = ("a b c d",)
) -> dict[str, Any]:
    """Episodes of which the first ones are paid best, and `best` of them have a phrase, and `others` of the rest."""
    top = of // 4

    def said(number: int) -> str:
        has_phrase = number < best or top <= number < top + others
        return "we all know that" if has_phrase else f"my answer is number {'x' * number}"

    made = [episode(f"{number % starts}-{number}", 1.0 * (number < top), said=said(number)) for number in range(of)]
    return {"report": report_of(made), "first_phrases": frozenset(first)}


def silent(best: int, *, of: int, starts: int = 2, success: bool | None = None) -> dict[str, Any]:
    """Episodes of which the first quarter is paid best, and `best` of them are silent."""
    info = {} if success is None else {"success": success}
    made = [
        episode(
            f"{number % starts}-{number}",
            1.0 * (number < of // 4),
            said="" if number < best else f"this is text {number}",
            info=info,
        )
        for number in range(of)
    ]
    return {"report": report_of(made)}


@pytest.mark.parametrize(
    ("name", "enough", "not_enough"),
    [
        ("zero_gradient", {"grad_norm": 0.99e-9}, {"grad_norm": 1e-9}),
        ("zero_gradient", {"advantage/min": -0.9e-9, "advantage/max": 0.9e-9}, {"advantage/min": -1e-9}),
        ("zero_gradient", {"advantage/min": 0.0, "advantage/max": 0.0}, {"advantage/min": 0.0, "advantage/max": 1e-9}),
        ("zero_gradient", {"advantage/min": 0.0, "advantage/max": 0.0}, {"advantage/min": -1e-9, "advantage/max": 0.0}),
        (
            "constant_groups",
            {"report": groups([0, 0], [1, 1], [0, 0], [0, 1])},
            {"report": groups([0, 0], [1, 1], [0, 1])},
        ),
        ("constant_groups", {"report": groups(*[[0, 0]] * 9, [0, 1])}, {"report": groups(*[[0, 0]] * 10)}),
        ("long_waits", {"report": waited(5.0)}, {"report": waited(4.99)}),
        (
            "reward_out_of_range",
            {"report": groups([0, 1.01]), "reward_range": (0.0, 1.0)},
            {"report": groups([0, 1]), "reward_range": (0.0, 1.0)},
        ),
        ("entropy_collapse", trend({"entropy": 2.0}, {"entropy": 0.19}), trend({"entropy": 2.0}, {"entropy": 0.2})),
        ("entropy_collapse", trend({"entropy": 1.0}, {"entropy": -0.1}), trend({"entropy": 0.0}, {"entropy": -0.1})),
        ("rollout_mismatch", {"rollout_diff/mean": 0.0201}, {"rollout_diff/mean": 0.02}),
        (
            "growing_lengths",
            trend({"tokens/response": 50}, {"tokens/response": 100}),
            trend({"tokens/response": 50}, {"tokens/response": 99}),
        ),
        (
            "growing_lengths",
            trend({"tokens/response": 1}, {"tokens/response": 2}),
            trend({"tokens/response": 0}, {"tokens/response": 2}),
        ),
        ("length_drift", lengths(long=(1, 2)), lengths(long=(1, 1.9))),
        ("length_drift", lengths(long=(1, 2)), lengths(long=(0, 2))),
        ("length_drift", lengths(long=(40, 80)), lengths(long=(40, 80), mean=(40, 80))),
        ("length_drift", lengths(long=(40, 80), mean=(40, 79)), lengths(long=None, middle=(40, 40))),
        ("length_drift", lengths(middle=(40, 20), reward=(1, 1)), lengths(middle=(40, 21), reward=(1, 1))),
        ("length_drift", lengths(middle=(40, 20), reward=(1, 0.9)), lengths(middle=(40, 20), reward=(1, 1.1))),
        ("length_drift", lengths(middle=(40, 20), reward=(1, 1)), lengths(middle=(40, 20))),
        ("length_drift", lengths(middle=(40, 20), reward=(1, 1)), lengths(middle=None, reward=(1, 1))),
        ("unreadable_calls_drift", over("unreadable/all", 0.25, 0.5), over("unreadable/all", 0.25, 0.49)),
        ("unreadable_calls_drift", over("unreadable/best", 0.0, 0.25), over("unreadable/worst", 0.0, 1.0)),
        ("success_against_reward", paid(0.5, 0.45, 1.0, 1.2), paid(0.5, 0.46, 1.0, 1.2)),
        ("success_against_reward", paid(0.5, 0.4, 1.0, 1.12), paid(0.5, 0.4, 1.0, 1.105)),
        ("success_against_reward", paid(0.5, 0.4, -1.0, -0.8), paid(0.5, 0.4, -1.0, -0.91)),
        ("reward_term_drift", terms((1, 3), (1, 1)), terms((1, 2.9), (1, 1))),
        ("reward_term_drift", terms((1, 3), (1, 1), (0.5, 0.54)), terms((1, 3), (1, 1), (0.5, 0.55))),
        ("reward_term_drift", terms((1, 3), (1, 0.74), None), terms((1, 3), (1, 0.75), None)),
        ("paid_without_skill", silent(4, of=16), silent(3, of=16)),
        ("paid_without_skill", silent(6, of=32), silent(5, of=32)),
        ("paid_without_skill", silent(4, of=16), silent(4, of=16, starts=1)),
        ("paid_without_skill", silent(4, of=16), silent(4, of=16, success=True)),
        ("new_high_reward_phrase", alike(4, of=16), alike(4, of=15)),
        ("new_high_reward_phrase", alike(4, of=32), alike(3, of=32)),
        ("new_high_reward_phrase", alike(5, of=40), alike(4, of=40)),
        ("new_high_reward_phrase", alike(4, of=16, others=6), alike(4, of=16, others=7)),
        ("new_high_reward_phrase", alike(4, of=16), alike(4, of=16, starts=1)),
        ("new_high_reward_phrase", alike(4, of=16), alike(4, of=16, first={"we all know that"})),
        ("new_high_reward_phrase", alike(4, of=16), alike(4, of=16, first=())),
        ("cut_turns", {"report": share(9, 10, stop="length")}, {"report": share(8, 10, stop="length")}),
        (
            "cut_turns",
            {"report": share(2, 2, stop="length"), "config": settings(max_tokens=32)},
            {"report": share(2, 2, stop="length"), "config": settings(max_tokens=31)},
        ),
        (
            "cut_episodes",
            {"report": share(9, 10, outcome=Outcome.TIME_LIMIT)},
            {"report": share(8, 10, outcome=Outcome.TIME_LIMIT)},
        ),
        ("repeated_episodes", {"report": share(4, 8, said="yes")}, {"report": share(3, 8, said="yes")}),
        ("repeated_episodes", {"report": share(8, 8, said="yes")}, {"report": share(7, 7, said="yes")}),
        (
            "repeated_episodes",
            {"report": share(4, 4, said="yes"), "config": settings(group_size=2)},
            {"report": share(3, 3, said="yes"), "config": settings(group_size=2)},
        ),
        ("failing_tools", {"report": calls(1, 0, 9)}, {"report": calls(1, 0, 10)}),
        ("failing_tools", {"report": calls(1, 0, 0)}, {"report": calls(0, 1, 0)}),
        ("misused_tools", {"report": calls(0, 4, 4)}, {"report": calls(0, 3, 5)}),
        ("misused_tools", {"report": calls(0, 4, 2, 2)}, {"report": calls(0, 4, 1, 2)}),
        ("misused_tools", {"report": calls(0, 4, 4)}, {"report": calls(4, 0, 4)}),
    ],
)
def test_a_warning_begins_where_it_should(name: str, enough: dict[str, Any], not_enough: dict[str, Any]) -> None:
    assert told(name, **enough)
    assert not told(name, **not_enough)


@pytest.mark.parametrize(("estimator", "is_told"), [("grpo", True), ("reinforce_plus_plus", False)])
def test_constant_groups_matter_to_an_estimator_that_compares(estimator: str, is_told: bool) -> None:
    report = groups([0, 0], [1, 1], [0, 0], [0, 1])
    assert told("constant_groups", report, config=settings(adv_estimator=estimator)) is is_told
    assert not told("constant_groups", report, config=settings(adv_estimator=estimator, filter_groups=True))


def test_a_solved_task_is_warned_of_neither_constant_groups_nor_repetition() -> None:
    constant, alike = groups([1, 1], [1, 1], [1, 1], [0, 1]), share(8, 8, said="yes")
    for name, report in (("constant_groups", constant), ("repeated_episodes", alike)):
        assert told(name, report)
        assert not told(name, report, **{"success/mean": 0.96})


@pytest.mark.parametrize(
    ("record", "reward_range", "is_solved"),
    [
        ({"success/mean": 0.95}, None, True),
        ({"success/mean": 0.94}, None, False),
        ({"reward/mean": 0.9}, (-1.0, 1.0), True),
        ({"reward/mean": 0.89}, (-1.0, 1.0), False),
        ({"reward/mean": 0.0, "success/mean": 1.0}, (0.0, 1.0), False),
        ({"reward/mean": 9.0}, None, False),
        ({"success/mean": 1.0}, (0.0, 1.0), True),
    ],
)
def test_a_task_is_solved_close_to_its_highest_reward_or_at_success(
    record: dict[str, float], reward_range: tuple[float, float] | None, is_solved: bool
) -> None:
    assert StepContext(record, VARIED, reward_range=reward_range).is_solved is is_solved


def test_a_trend_needs_five_numbers_on_both_sides() -> None:
    five, four = [{"x": float(n)} for n in range(5)], [{"x": 1.0}] * 4
    assert StepContext({}, VARIED, first=five, recent=[{"x": 4}] * 5).trend("x") == (2.0, 4.0)
    for first, recent in ((five, four), (four, five), (five, [*four, {}]), (five, [*four, {"x": float("inf")}])):
        assert StepContext({}, VARIED, first=first, recent=recent).trend("x") is None
    assert StepContext({"x": "NaN"}, VARIED).value("x") is None


def test_the_first_steps_are_remembered_and_the_latest_ones_slide() -> None:
    watch = StepMonitor(settings())
    names = []
    for step in range(1, 31):
        length = 50.0 if step <= 5 else 99.0 if step <= 20 else 300.0
        names += [
            (warning.name, step) for warning in watch.step({**HEALTHY, "step": step, "tokens/response": length}, VARIED)
        ]
    assert names == [("growing_lengths", 21)], "the mean of the last five is 139.2 there"


def test_a_warning_has_three_episodes_at_most_and_the_step() -> None:
    warning = StepContext({"step": 7}, VARIED).warning("x", "What.", "Why.", "Do.", ["a", "b", "c", "d"])
    assert (warning.step, warning.episodes) == (7, ("a", "b", "c"))
    assert StepContext({"step": 7}, VARIED).warning("x", "What.", "Why.", "Do.").episodes == ()


def because(report: EpisodeReport, **more: Any) -> str:
    return cause_of_zero(report, settings(), flat=True, **more).because


def test_a_limit_explains_equal_rewards_if_nearly_all_episodes_reached_it() -> None:
    def at_limit(count: int) -> EpisodeReport:
        outcomes = [Outcome.TOKEN_LIMIT] * count + [Outcome.COMPLETED] * (10 - count)
        return report_of(episode(f"0-{place}", outcome=outcome) for place, outcome in enumerate(outcomes))

    assert "9 of them reached a limit (token_limit)" in because(at_limit(9))
    assert "reached a limit" not in because(at_limit(8))


def test_cut_turns_explain_equal_rewards_unless_the_reward_is_positive() -> None:
    def cut(count: int, reward: float = 0.0) -> EpisodeReport:
        stops = ["length"] * count + ["stop"] * (10 - count)
        return report_of(episode(f"0-{place}", reward, stop=stop) for place, stop in enumerate(stops))

    assert because(cut(9)) == "all 10 episodes got the same reward, 0, and 9 of 10 turns were cut at 128 tokens"
    assert "leaves room for an answer" in cause_of_zero(cut(9), settings(), flat=True).advice
    assert because(cut(8)) == "all 10 episodes got the same reward, 0"
    assert "leaves room for an answer" not in cause_of_zero(cut(8), settings(), flat=True).advice
    assert because(cut(9, -1.0)).endswith("turns were cut at 128 tokens")
    assert because(cut(9, 1.0)) == "all 10 episodes got the same reward, 1"
    assert "the task is solved" in cause_of_zero(cut(9, 1.0), settings(), flat=True).advice


def test_clipping_explains_it_if_nearly_all_tokens_are_clipped() -> None:
    for clipped, said in ((0.9, "clipped 90% of the tokens"), (0.89, "every token is masked")):
        assert said in cause_of_zero(VARIED, settings(), flat=False, clipped=clipped).because


def test_the_only_group_is_not_called_one_of_several() -> None:
    assert because(groups([0, 0], [1])).startswith("in the only group all episodes got the same reward")
    assert because(groups([0, 0], [1, 1])).startswith("in each of the 2 groups")


def test_examples_are_of_several_groups_or_of_the_only_one() -> None:
    report = groups([0, 0], [1, 1], [0, 0], [0, 0], [0, 0])
    assert cause_of_zero(report, settings(), flat=True).episodes == ("0-0", "1-0", "2-0")
    assert cause_of_zero(groups([0] * 5), settings(), flat=True).episodes == ("0-0", "0-1", "0-2")
    failed = [Trajectory(episode_id=f"e{n}", outcome=Outcome.ENGINE_FAILED, error="gone\nline 2") for n in range(2)]
    failed += [Trajectory(episode_id=f"w{n}", outcome=Outcome.WORKER_LOST) for n in range(3)]
    cause = cause_of_zero(report_of(failed), settings(), flat=True)
    assert cause.because == "no episode can be trained on (3 worker_lost, 2 engine_failed)"
    assert (cause.advice, cause.episodes) == ("Fix the first failure: gone", ("e0", "e1", "w0"))
    empty = cause_of_zero(EpisodeReport(), settings(), flat=True)
    assert (empty.because, empty.advice) == (
        "no episode can be trained on (there were none)",
        "Fix the first failure: see the episodes",
    )


def test_a_long_error_is_cut() -> None:
    assert first_line("  \n" + "x" * 200 + "\nmore") == "x" * 200
    assert first_line("x" * 201) == "x" * 200 + "..."


@pytest.mark.parametrize(
    ("declared", "expected"), [((0, 1), (0.0, 1.0)), ((1, 1), (1.0, 1.0)), ((1, 0), None), ((1,), None), ("ab", None)]
)
def test_a_reward_range_is_two_numbers_in_order(declared: Any, expected: tuple[float, float] | None) -> None:
    class Game:
        reward_range = declared

    assert declared_range(Game) == expected


def test_what_costs_nothing_and_did_nothing_is_told_apart() -> None:
    assert found(FLAT, groups([0, 0]))["zero_gradient"].why.endswith("did not change the policy.")
    beside = found({**FLAT, "grad_norm": 0.2}, groups([0, 0]))["zero_gradient"]
    assert beside.why.endswith("except through the KL and entropy terms.")
