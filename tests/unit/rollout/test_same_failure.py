"""When it is certain that everything fails in the same way, and when it is not."""

from __future__ import annotations

import time

import pytest

from turnsmith.rollout.same_failure import SameFailure
from turnsmith.trajectory import Outcome, Trajectory


def after(attempts: int, episodes: int, *others: Trajectory, wait: bool = True) -> str:
    same = SameFailure()
    for other in others:
        same.add("other", other, time.monotonic())
    for number in range(attempts):
        error = f"OSError: port {number} at 0x{number:x}f"
        began = time.monotonic() + (same.pause() + 0.1 if wait else 0.0)
        same.add(f"e{number % episodes}", Trajectory(outcome=Outcome.ENVIRONMENT_FAILED, error=error), began)
    return same.sentence


def test_nine_attempts_at_three_episodes_are_enough_and_fewer_are_not() -> None:
    assert after(9, 3) == "All 9 attempts at 3 episodes failed in the same way: OSError: port 0 at 0x0f", (
        "numbers and addresses differ, and the first is told"
    )
    assert after(8, 3) == ""
    assert after(100, 2) == ""
    assert SameFailure().sentence == ""


def test_a_burst_of_failures_decides_nothing_before_a_back_off() -> None:
    assert after(100, 50, wait=False) == ""


@pytest.mark.parametrize(
    "other",
    [
        Trajectory(outcome=Outcome.COMPLETED),
        Trajectory(outcome=Outcome.TURN_LIMIT),
        Trajectory(outcome=Outcome.WORKER_LOST, error="OSError: port 1 at 0x1f"),
        Trajectory(outcome=Outcome.OVERLOADED, error="OSError: port 1 at 0x1f"),
        Trajectory(outcome=Outcome.ENVIRONMENT_FAILED, error="KeyError"),
        Trajectory(outcome=Outcome.ENGINE_FAILED, error="OSError: port 1 at 0x1f"),
        Trajectory(),
    ],
)
def test_one_attempt_that_ended_in_another_way_refutes_it(other: Trajectory) -> None:
    assert after(20, 5, other) == ""
