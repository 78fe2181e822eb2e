"""Farama-Foundation/Minigrid: a level of a shape of one's own, with the project's text of the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from published_subjects import Subject
from turnsmith.env.adapters.gymnasium import GymnasiumEnvironment


def grid_as_text(env: Any, observation: Any) -> str:
    return f"{observation['mission']}\n{env.unwrapped.pprint_grid()}"


class WideDoorKey(GymnasiumEnvironment):
    """Two rooms beside each other, ten cells wide and six high."""

    reward_range = (0.0, 1.0)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        from minigrid.core.actions import Actions
        from minigrid.envs import DoorKeyEnv

        level = DoorKeyEnv(size=None, width=10, height=6, max_steps=600)
        super().__init__(level, config, observe=grid_as_text, act=[action.name for action in Actions])


def _door_is_not_between_the_rooms() -> bool:
    from minigrid.core.world_object import Door
    from minigrid.envs import DoorKeyEnv

    for seed in range(60):
        level = DoorKeyEnv(size=None, width=10, height=6, max_steps=600)
        try:
            level.reset(seed=seed)
        except AssertionError:
            return True
        doors = [place for place, what in enumerate(level.grid.grid) if isinstance(what, Door)]
        if not 1 <= doors[0] // 10 <= 4:
            return True
    return False


SUBJECTS = {
    "minigrid-doorkey": Subject(
        (
            "published_subjects.minigrid_blind:WideDoorKey",
            "environment.max_steps=60",
            "inference.max_turns=60",
            "inference.max_episode_tokens=32768",
        ),
        _door_is_not_between_the_rooms,
    ),
}
