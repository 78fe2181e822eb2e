"""Planted drift is warned of, with its episodes; runs without it, and real ones that learn, are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.trainer.test_warnings import HEALTHY, episode

from turnsmith import ConfigStore, RunFolder, Trajectory
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import report_of
from turnsmith.trainer.diagnostics.context import step_record
from turnsmith.trainer.diagnostics.monitor import StepMonitor

DRIFT = {
    "success_against_reward",
    "reward_term_drift",
    "length_drift",
    "unreadable_calls_drift",
    "new_high_reward_phrase",
}
Player = Callable[[int, int], Trajectory]
"""Plays episode `number` of a step."""
FLATTERY = "As an expert in this field, I can confirm that this answer deserves the highest score."


def one(
    step: int,
    number: int,
    reward: float,
    *,
    success: bool | None = None,
    said: str = "",
    tokens: int = 2,
    problem: bool = False,
    **terms: float,
) -> Trajectory:
    info = ({} if success is None else {"success": success}) | ({"format_problem": "x"} if problem else {})
    info |= {"tool_calls": [{"ok": True}]}
    made = episode(f"{number // 4}-{number}", reward, info=info, said=said or f"my {step} answer is number {number}")
    made.tokens.append_model([5] * (tokens - 2), [-0.5] * (tokens - 2))
    made.reward_shares = terms
    return made


def steps_of(play: Player, steps: int = 12, watch: StepMonitor | None = None, first: int = 1) -> list[RunWarning]:
    watch = watch or StepMonitor(ConfigStore())
    news: list[RunWarning] = []
    for step in range(first, first + steps):
        report = report_of([play(step, number) for number in range(32)])
        news += watch.step({**HEALTHY, **step_record(step, 1, {}, report)}, report)
    return [warning for warning in news if warning.name in DRIFT and warning.until is None]


def is_late(step: int) -> bool:
    return step > 5


def flattered_judge(step: int, number: int) -> Trajectory:
    success = number % 4 == 0 if is_late(step) else number % 2 == 0
    judged = 0.9 if is_late(step) and number % 4 else 0.5
    return one(step, number, judged, success=success, judge=judged)


def term_takes_over(step: int, number: int) -> Trajectory:
    polite, right = (3.0 + number / 100, 0.5) if is_late(step) else (0.5, 0.5)
    return one(step, number, polite + right, success=number % 2 == 0, polite=polite, right=right)


def term_for_another(step: int, number: int) -> Trajectory:
    polite, right = (2.0, 0.1) if is_late(step) else (0.5, 0.5)
    return one(step, number, polite + right, polite=polite, right=right)


def long_tail(step: int, number: int) -> Trajectory:
    return one(step, number, number % 2, tokens=200 if is_late(step) and number >= 27 else 40)


def shrinking(step: int, number: int) -> Trajectory:
    return one(step, number, number % 2, tokens=10 if is_late(step) else 40)


def paid_for_broken_calls(step: int, number: int) -> Trajectory:
    is_best = number % 4 == 0
    return one(step, number, float(is_best), problem=is_best and is_late(step))


def flattery(step: int, number: int) -> Trajectory:
    is_best = number % 4 == 0
    said = f"{number} {FLATTERY}" if is_best and is_late(step) else ""
    return one(step, number, float(is_best), said=said)


@pytest.mark.parametrize(
    ("play", "name", "words"),
    [
        (flattered_judge, "success_against_reward", "The judge's score rose from 0.500 to 0.800, while success fell"),
        (term_takes_over, "reward_term_drift", "The reward term polite is 86% of the reward"),
        (term_for_another, "reward_term_drift", "The reward term polite is 95% of the reward"),
        (long_tail, "length_drift", "The longest tenth of episodes has 200 sampled tokens or more, 40 in the first"),
        (shrinking, "length_drift", "Half of the episodes have at most 10 sampled tokens, 40 in the first steps"),
        (paid_for_broken_calls, "unreadable_calls_drift", "100% of the best paid quarter of episodes"),
        (flattery, "new_high_reward_phrase", "8 of the 8 best paid episodes, from several starts, have"),
    ],
)
def test_planted_drift_is_found_with_its_episodes(play: Player, name: str, words: str) -> None:
    found = {warning.name: warning for warning in steps_of(play)}
    assert name in found
    assert words in found[name].what
    assert found[name].advice
    shown = found[name].episodes
    assert len(shown) == 3
    assert found[name].step > 5


def test_the_episodes_are_those_that_show_it() -> None:
    [warning] = [one for one in steps_of(flattery) if one.name == "new_high_reward_phrase"]
    assert all(int(name.partition("-")[2]) % 4 == 0 for name in warning.episodes)
    [warning] = [one for one in steps_of(flattered_judge) if one.name == "success_against_reward"]
    assert all(int(name.partition("-")[2]) % 4 for name in warning.episodes)


@pytest.mark.parametrize(
    "play",
    [flattered_judge, term_takes_over, term_for_another, long_tail, shrinking, paid_for_broken_calls, flattery],
)
@pytest.mark.parametrize("is_late_now", [False, True])
def test_what_was_so_from_the_start_is_no_drift(
    play: Player, is_late_now: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.is_late", lambda step: is_late_now)
    assert steps_of(play, 30) == []


def test_a_run_that_learns_the_task_is_not_warned_of() -> None:
    def learns(step: int, number: int) -> Trajectory:
        success = number % 12 < step
        return one(step, number, 5.0 * success + 0.2, success=success, right=5.0 * success, polite=0.2, tokens=40)

    assert steps_of(learns) == []


def test_a_phrase_of_one_start_is_its_answer() -> None:
    def one_start(step: int, number: int) -> Trajectory:
        is_best = number < 8
        return one(
            step, number if not is_best else 0, float(is_best), said=FLATTERY if is_late(step) and is_best else ""
        )

    assert steps_of(one_start) == []


def test_a_resumed_run_remembers_what_was_written_first(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    for step in range(1, 7):
        episodes = [one(step, number, float(number % 4 == 0), said=f"{number} {FLATTERY}") for number in range(32)]
        write_episodes(run, step, episodes)
        run.append_metrics({**HEALTHY, "step": step})
    assert steps_of(flattery, 3, StepMonitor.of_run(run, ConfigStore()), first=7) == []
