"""What actions earn, for tests of an environment or a scorer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from turnsmith.check.environment.oracle import in_order
from turnsmith.check.environment.subject import Subject
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure
from turnsmith.rollout.episode import EpisodeStart


def reward_of(
    environment: object,
    actions: Sequence[str],
    *,
    seed: int = 0,
    task: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> float:
    """What an episode earns in which a model says these texts, one in each turn; for tests of an environment.

    Args:
        environment: Its class, or the name by which `turnsmith check` finds it.
        actions: The texts, tool calls as a model writes them.
        seed: Where the episode begins.
        task: The row that it begins from.
        settings: The environment's own settings.

    Raises:
        EnvironmentFailure: The episode ended in a fault.

    Example:
        >>> reward_of("turnsmith.env.examples:GuessNumber", ["13"], seed=0)
        1.0
    """
    own: dict[str, Any] = {"isolation": "thread", **(settings or {})}
    spec = EnvironmentSpec.of(environment, EnvironmentConfig(**own))
    config = ConfigStore()
    config.inference.max_turns = len(actions)
    start = EpisodeStart("test", seed=seed, task=None if task is None else dict(task))
    [episode] = asyncio.run(Subject(environment=spec, config=config).play(in_order(actions), [start]))
    if not episode.is_counted:
        raise EnvironmentFailure(episode.error)
    return episode.total_reward
