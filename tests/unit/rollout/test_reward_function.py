"""Which reward functions are called with the environment."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from turnsmith.rollout.rewards.reward_function import compute_score, takes_environment
from turnsmith.trajectory import Trajectory


class Callable:
    def __call__(self, trajectory: Trajectory, environment: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda trajectory: 0.0, False),
        (lambda trajectory, environment: 0.0, True),
        (lambda trajectory, world: 0.0, True),
        (lambda trajectory, env=None: 0.0, True),
        (lambda trajectory, scale=0.5: 0.0, False),
        (lambda trajectory, *, environment=None: 0.0, False),
        (lambda *arguments: 0.0, True),
        (Callable(), True),
        (max, False),
    ],
)
def test_a_second_parameter_is_the_environment(function: Any, expected: bool) -> None:
    assert takes_environment(function) is expected


async def test_a_builtin_without_a_signature_gets_the_trajectory_alone() -> None:
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(max)
    assert await compute_score(max, [1.0, 3.0], None, 9.0) == 3.0  # type: ignore[arg-type]
