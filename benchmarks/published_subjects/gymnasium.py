"""Farama-Foundation/Gymnasium: an environment of MuJoCo, with the model file of the installed package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import distribution
from typing import Any

from published_subjects import Subject
from turnsmith.env.adapters.gymnasium import GymnasiumEnvironment


def _make() -> Any:
    import gymnasium

    file = distribution("gymnasium").locate_file("gymnasium/envs/mujoco/assets/reacher.xml")
    return gymnasium.make("Reacher-v5", xml_file=str(file))


class Reacher(GymnasiumEnvironment):
    """An arm with two joints that is to reach a place."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(_make(), config)


def _the_first_reward_does_not_know_the_action() -> bool:
    distances: set[float] = set()
    for torque in (-1.0, 1.0):
        env = _make()
        env.reset(seed=1)
        distances.add(env.step(env.action_space.low * torque)[4]["reward_dist"])
        env.close()
    return len(distances) == 1


SUBJECTS = {
    "gymnasium-reacher-late": Subject(
        ("published_subjects.gymnasium:Reacher", "inference.max_turns=50", "inference.max_episode_tokens=32768"),
        _the_first_reward_does_not_know_the_action,
    ),
}
