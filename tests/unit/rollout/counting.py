"""An environment that counts, and how tests play an episode in it."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.inference import Chat, Sampling, ScriptedEngine
from turnsmith.rollout import EpisodeStart, Limits, run_episode
from turnsmith.trajectory import Trajectory


class Count(BaseEnvironment):
    """Pays 1, 2, 3 ... and ends after `length` steps; it raises at step `at`."""

    closed: ClassVar[list[int]] = []

    def reset(self, seed: int = 0) -> str:
        self.steps = 0
        if self.config.get("at") == 0:
            raise OSError("no board")
        return f"start {seed}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.steps += 1
        if self.config.get("at") == self.steps:
            time.sleep(self.config.get("sleep", 0.0))
            raise KeyError(action)
        return f"obs {self.steps}", float(self.steps), self.steps >= self.config.get("length", 3), {"n": self.steps}

    def get_prompt_prefix(self) -> str:
        return self.config.get("prefix", "")

    def close(self) -> None:
        self.closed.append(id(self))


async def play(
    chat: Chat,
    replies: Any = ("a", "bb", "ccc", "d", "e"),
    *,
    limits: Limits | None = None,
    engine: Any = None,
    **options: Any,
) -> Trajectory:
    settings = {name: options.pop(name) for name in list(options) if name not in ("reward_fn", "sampling", "start")}
    Count.closed.clear()
    trajectory = await run_episode(
        options.get("start", EpisodeStart("e1", "g1", 7)),
        environment=EnvironmentSpec.of(settings.pop("environment", Count), EnvironmentConfig(**settings)),
        engine=engine or ScriptedEngine(replies, chat, log_prob=-0.5),
        chat=chat,
        limits=limits or Limits(),
        sampling=options.get("sampling", Sampling()),
        reward_fn=options.get("reward_fn"),
    )
    check_consistent(trajectory)
    return trajectory


def check_consistent(trajectory: Trajectory) -> None:
    """What must hold for every trajectory, however it ended."""
    turns = len(trajectory.turns)
    tokens = trajectory.tokens
    assert trajectory.outcome is not None
    assert bool(trajectory.error) == (not trajectory.outcome.is_behaviour)
    for entries in (trajectory.states, trajectory.actions, trajectory.rewards, trajectory.dones, trajectory.infos):
        assert len(entries) == turns
    assert len(tokens.ids) == len(tokens.log_probs) == len(tokens.mask)
    marked = [place for turn in trajectory.turns for place in range(turn.start, turn.stop)]
    assert [place for place, bit in enumerate(tokens.mask) if bit] == marked
    assert all(tokens.log_probs[place] == 0.0 for place, bit in enumerate(tokens.mask) if not bit)
