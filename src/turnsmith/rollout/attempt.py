"""What every attempt at an episode has, in an environment or with an agent: a start, an outcome and a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from turnsmith.clocks import Bottleneck, Clock
from turnsmith.env.host import Host
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, Overloaded, WorkerLost, describe_failure
from turnsmith.rollout.rewards.reward_function import RewardFailure, compute_score
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trajectory import Outcome, Trajectory


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Where an episode begins. Episodes of a group differ only in `episode_id`."""

    episode_id: str
    group_id: str = ""
    seed: int = 0
    task: dict[str, Any] | None = None
    """A row of the dataset, for environments whose `reset` takes `task`."""
    prompt: str = ""
    """Prepended to the first observation."""
    system_prompt: str = ""
    """Prepended to the environment's own system prompt."""


async def score_trajectory(
    trajectory: Trajectory, spec: RolloutSpec, host: Host, waits: dict[Bottleneck, float]
) -> None:
    """Call the run's reward function; if it fails, that is the outcome. The time that it waits is added to `waits`."""
    if spec.reward_fn is None:
        return
    given = spec.reward_fn, trajectory, host.environment, spec.limits.seconds, host.thread
    try:
        async with Clock(None) as clock:
            clock.waits = waits
            trajectory.score = await compute_score(*given)
    except (RewardFailure, Overloaded) as failure:
        overload = isinstance(failure, Overloaded)
        trajectory.outcome = Outcome.OVERLOADED if overload else Outcome.REWARD_FAILED
        trajectory.error = str(failure)


def environment_outcome(error: Exception) -> tuple[Outcome, str]:
    """The outcome of an episode whose environment failed, and what to say about it.

    Example:
        >>> environment_outcome(EnvironmentFailure("Game.step raised KeyError."))
        (<Outcome.ENVIRONMENT_FAILED: 'environment_failed'>, 'Game.step raised KeyError.')
    """
    message = str(error) if isinstance(error, EnvironmentFailure) else describe_failure("The environment", error)
    if isinstance(error, EnvironmentTimeout):
        return Outcome.ENVIRONMENT_TIMEOUT, message
    if isinstance(error, Overloaded):
        return Outcome.OVERLOADED, message
    return Outcome.WORKER_LOST if isinstance(error, WorkerLost) else Outcome.ENVIRONMENT_FAILED, message
