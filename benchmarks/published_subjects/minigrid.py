"""Farama-Foundation/Minigrid: a task by its name, in its newest version, with the project's text of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from published_subjects import Subject
from turnsmith.env.adapters.gymnasium import GymnasiumEnvironment


def _observe(env: Any, observation: Any) -> str:
    return f"{observation['mission']}\n{env.unwrapped.pprint_grid()}"


def _make() -> Any:
    import gymnasium
    import minigrid  # noqa: F401 - registers its tasks

    return gymnasium.make("MiniGrid-MultiRoom-N4-S5")


class FourRooms(GymnasiumEnvironment):
    """Four rooms in a row, of five cells at most."""

    reward_range = (0.0, 1.0)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        from minigrid.core.actions import Actions

        super().__init__(_make(), config, observe=_observe, act=[action.name for action in Actions])


def _there_are_not_four_rooms() -> bool:
    env = _make()
    env.reset(seed=0)
    return len(env.unwrapped.rooms) != 4


SUBJECTS = {
    "minigrid-multiroom": Subject(
        (
            "published_subjects.minigrid:FourRooms",
            "environment.max_steps=120",
            "inference.max_turns=120",
            "inference.max_episode_tokens=65536",
        ),
        _there_are_not_four_rooms,
    ),
}
