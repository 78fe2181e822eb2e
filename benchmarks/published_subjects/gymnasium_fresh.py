"""Farama-Foundation/Gymnasium: the race with its discrete actions, and the car's place and speed as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from published_subjects import Subject
from turnsmith.env.adapters.gymnasium import GymnasiumEnvironment

ACTIONS = ("nothing", "left", "right", "gas", "brake")


def place_and_speed(env: Any, observation: Any) -> str:
    """Where the car is, how fast it is, and the next pieces of the track."""
    race = env.unwrapped
    x, y = race.car.hull.position
    dx, dy = race.car.hull.linearVelocity
    passed = race.tile_visited_count
    ahead = [race.track[(passed + step) % len(race.track)][2:4] for step in (1, 4, 8)]
    shown = "; ".join(f"({tile_x:.0f}, {tile_y:.0f})" for tile_x, tile_y in ahead)
    return f"Place ({x:.0f}, {y:.0f}), speed ({dx:.1f}, {dy:.1f}), {passed} tiles passed, next: {shown}."


class Race(GymnasiumEnvironment):
    """Drive around the track."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        from gymnasium.envs.box2d.car_racing import CarRacing

        super().__init__(CarRacing(continuous=False), config, observe=place_and_speed, act=ACTIONS)


def _number_is_no_array() -> bool:
    from gymnasium.envs.box2d.car_racing import CarRacing

    race = CarRacing(continuous=False)
    race.reset(seed=1)
    try:
        race.step(3)
    except AttributeError:
        return True
    return False


SUBJECTS = {
    "gymnasium-car-racing": Subject(
        (
            "published_subjects.gymnasium_fresh:Race",
            "environment.max_steps=30",
            "inference.max_turns=30",
            "inference.max_episode_tokens=16384",
        ),
        _number_is_no_array,
    ),
}
