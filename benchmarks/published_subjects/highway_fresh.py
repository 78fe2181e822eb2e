"""Farama-Foundation/HighwayEnv: two of its environments with numbers as actions and what is seen as numbers."""

from __future__ import annotations

import json
import re
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment


class Driving(BaseEnvironment):
    """A car that is steered by numbers."""

    about = ""
    asked = ""

    def build(self) -> Any:
        raise NotImplementedError

    def reset(self, seed: int = 0) -> str:
        self.game = self.build()
        observation, _ = self.game.reset(seed=seed)
        return self.shown(observation)

    def get_prompt_prefix(self) -> str:
        return f"{self.about} {self.asked}"

    def step(self, action: str) -> Any:
        chosen = self.read([float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", action)])
        if chosen is None:
            return self.asked, 0.0, False, {"invalid_action": True}
        observation, reward, terminated, truncated, info = self.game.step(chosen)
        return self.shown(observation), float(reward), bool(terminated), bool(truncated), info

    def read(self, numbers: list[float]) -> Any:
        raise NotImplementedError

    def shown(self, observation: Any) -> str:
        raise NotImplementedError

    def close(self) -> None:
        self.game.close()


class Merge(Driving):
    """A highway with a car that wants in."""

    about = "Drive fast on a highway, let a car in that merges, and hit nobody. You see each car's place and speed."
    asked = "Answer with a number: 3 * pedal + wheel, each 0, 1 or 2 (brake, hold, gas; left, straight, right)."

    def build(self) -> Any:
        from highway_env.envs.merge_env import MergeEnv

        return MergeEnv({"action": {"type": "DiscreteAction"}})

    def read(self, numbers: list[float]) -> Any:
        return int(numbers[0]) if len(numbers) == 1 and numbers[0] in range(9) else None

    def shown(self, observation: Any) -> str:
        return json.dumps([[round(float(value), 2) for value in car] for car in observation])


class Parking(Driving):
    """A place to park in, with other cars around."""

    about = "Park the car on the goal. You see the place, speed and direction of the car and of the goal."
    asked = "Answer with two numbers from -1 to 1: how much to accelerate and how much to steer."

    def build(self) -> Any:
        from highway_env.envs.parking_env import ParkingEnv

        return ParkingEnv({"vehicles_count": 10})

    def read(self, numbers: list[float]) -> Any:
        import numpy as np

        return np.array(numbers) if len(numbers) == 2 and max(map(abs, numbers)) <= 1 else None

    def shown(self, observation: Any) -> str:
        seen = {name: [round(float(value), 2) for value in values] for name, values in observation.items()}
        others = [[round(float(value), 1) for value in car.position] for car in self.game.road.vehicles[1:]]
        return json.dumps(seen | {"other cars": others})


def _reward_raises() -> bool:
    game = Merge()
    try:
        game.reset(seed=1)
        game.step("4")
    except AttributeError:
        return True
    return False


def _goal_is_taken() -> bool:
    import numpy as np

    game = Parking()
    for seed in range(40):
        game.reset(seed=seed)
        places = [np.array(car.position) for car in game.game.road.vehicles]
        goals = [thing.position for thing in game.game.road.objects if type(thing).__name__ == "Landmark"]
        near = [np.linalg.norm(place - other) for number, place in enumerate(places) for other in places[:number]]
        if any(np.linalg.norm(place - goal) < 3 for place in places[1:] for goal in goals) or min(near, default=9) < 3:
            return True
    return False


_HERE = "published_subjects.highway_fresh"
_LONG = ("environment.max_steps=30", "inference.max_turns=30", "inference.max_episode_tokens=32768")
SUBJECTS = {
    "highway-merge-speed": Subject((f"{_HERE}:Merge", *_LONG), _reward_raises),
    "highway-parking-vehicles": Subject((f"{_HERE}:Parking", *_LONG), _goal_is_taken),
}
