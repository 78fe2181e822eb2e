"""Farama-Foundation/Gymnasium: an environment by its name, and games side by side with normalised rewards."""

from __future__ import annotations

import json
import re
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment


def _games(count: int) -> Any:
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from gymnasium.wrappers.vector import NormalizeReward

    makers = [lambda: gymnasium.make("CartPole-v1")] * count
    return NormalizeReward(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))


class PolesSideBySide(BaseEnvironment):
    """Two poles at a time, each of which starts again when it has fallen; an action has a move for each."""

    def reset(self, seed: int = 0) -> str:
        self.games = _games(2)
        poles, _ = self.games.reset(seed=seed)
        return self._shown(poles)

    def get_prompt_prefix(self) -> str:
        return "Balance two poles. Answer with two numbers, one for each pole: 0 pushes its cart left, 1 right."

    def step(self, action: str) -> Any:
        moves = [int(move) for move in re.findall(r"\b[01]\b", action)]
        if len(moves) != 2:
            return "Answer with two numbers that are 0 or 1.", 0.0, False, {"invalid_action": True}
        poles, rewards, *_ = self.games.step(moves)
        return self._shown(poles), float(rewards.mean()), False, {}

    def close(self) -> None:
        self.games.close()

    @staticmethod
    def _shown(poles: Any) -> str:
        return json.dumps([[round(float(value), 3) for value in pole] for pole in poles])


def _seed_ends_elsewhere() -> bool:
    from gymnasium.envs.box2d.lunar_lander import LunarLander

    def ends(game: Any, seed: int) -> list[list[float]]:
        game.reset(seed=seed)
        moves = (seed + step * step for step in range(90))
        return [[float(value) for value in game.step(move % 4)[0]] for move in moves]

    game = LunarLander()
    again = [ends(game, seed) for seed in range(30)]
    return again != [ends(LunarLander(), seed) for seed in range(30)]


def _rewards_are_left_out() -> bool:
    games = _games(2)
    games.reset(seed=1)
    for _ in range(60):
        games.step([1, 1])
    return round(games.return_rms.count) < 2 * 60


SUBJECTS = {
    "gymnasium-lunar-lander": Subject(
        ("gymnasium:LunarLander-v3", "inference.max_turns=100", "inference.max_episode_tokens=32768"),
        _seed_ends_elsewhere,
    ),
    "gymnasium-normalize-reward": Subject(
        (
            "published_subjects.gymnasium_blind:PolesSideBySide",
            "environment.max_steps=40",
            "inference.max_turns=40",
            "inference.max_episode_tokens=16384",
        ),
        _rewards_are_left_out,
    ),
}
