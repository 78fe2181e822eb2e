"""What every attempt at an episode has, in an environment or with an agent: a start, an outcome and a score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from turnsmith.concurrency.clocks import Bottleneck, Clock
from turnsmith.env.host import Host
from turnsmith.env.mix import MixMember
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentTimeout,
    Overloaded,
    WorkerLost,
    describe_failure,
    internal_error,
    is_bug,
    is_ours,
)
from turnsmith.rollout.rewards.reward_function import RewardFailure, compute_score
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.tools.step_result import to_reward
from turnsmith.trajectory import Outcome, Trajectory


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Where an episode begins. Episodes of a group differ only in `episode_id`.

    Example:
        >>> start = EpisodeStart("episode-1")
        >>> start.seed, start.task
        (0, None)
    """

    episode_id: str
    group_id: str = ""
    seed: int = 0
    task: dict[str, Any] | None = None
    """A row of the dataset, for environments whose `reset` takes `task`."""
    prompt: str = ""
    """Prepended to the first observation."""
    system_prompt: str = ""
    """Prepended to the environment's own system prompt."""
    environment: str = ""
    """Of a mix, the name of the environment to play in; empty: the seed decides."""


def in_mix(start: EpisodeStart, spec: RolloutSpec) -> tuple[EpisodeStart, RolloutSpec, MixMember | None]:
    """Choose the environment of an episode, if the run has a mix of them, with the limits that are its own.

    Example:
        >>> from turnsmith import EnvironmentMix
        >>> from turnsmith.env.examples import GuessNumber
        >>> mix = EnvironmentSpec.of(EnvironmentMix({"guess": MixMember(GuessNumber, max_turns=3)}))
        >>> start, spec, _ = in_mix(EpisodeStart("e"), RolloutSpec(environment=mix))
        >>> start.environment, spec.environment.name, spec.limits.turns, spec.limits.seconds
        ('guess', 'GuessNumber', 3, 600.0)
    """
    chosen = spec.environment.member_for(start.environment, start.seed)
    if chosen is None:
        return start, spec, None
    name, member = chosen
    if not isinstance(member.environment, EnvironmentSpec):
        raise ConfigError("The environments of the mix have not been looked up: pass EnvironmentSpec.of(mix).")
    limits = replace(
        spec.limits,
        turns=member.max_turns or spec.limits.turns,
        seconds=member.max_seconds or spec.limits.seconds,
    )
    return replace(start, environment=name), replace(spec, environment=member.environment, limits=limits), member


def finish_reward(
    trajectory: Trajectory,
    *,
    reward_range: tuple[float, float] | None = None,
    penalty: float | None = None,
    is_scored: bool = False,
) -> bool:
    """Everything that changes the reward of an episode once it has been played, and the check of what comes out.

    Each reward was checked when it was given. If one of them, or what they add up to, cannot be trained on now, the
    episode is a fault and they are all 0.

    Args:
        trajectory: The episode.
        reward_range: Of an environment in a mix: this range is mapped to 0 to 1; what is added goes to the last turn.
        penalty: Added to the score if the episode has one, else to the reward of its last turn.
        is_scored: Whether the run has a reward function, even if it has not scored this episode.

    Returns:
        Whether the rewards can be trained on.

    Example:
        >>> episode = Trajectory(actions=["a", "b"], rewards=[2.0, 2.0])
        >>> finish_reward(episode, reward_range=(-4.0, 4.0)), episode.rewards, episode.total_reward
        (True, [0.25, 0.75], 1.0)
        >>> finish_reward(episode, penalty=-0.5), episode.rewards
        (True, [0.25, 0.25])
        >>> episode = Trajectory(actions=["a", "b"], rewards=[6e14, 6e14], outcome=Outcome.COMPLETED)
        >>> finish_reward(episode)
        False
        >>> episode.outcome.value, episode.rewards
        ('reward_failed', [0.0, 0.0])
        >>> episode.error
        'The rewards of the episode add up to 1200000000000000; a reward must be a number from -1e+15 to 1e+15, \
because training computes in float32: scale it down.'
    """
    if reward_range is not None:
        _to_common_scale(trajectory, *reward_range)
    if penalty is not None and (trajectory.score is not None or is_scored):
        trajectory.score = (trajectory.score or 0.0) + penalty
    elif penalty is not None:
        trajectory.rewards[-1] += penalty
    total = "The rewards of the episode add up to" if trajectory.score is None else "The score of the episode is"
    given = [(f"The reward of turn {turn} is", reward) for turn, reward in enumerate(trajectory.rewards)]
    given += [(f"The share of {name!r} is", share) for name, share in trajectory.reward_shares.items()]
    for what, reward in (*given, (total, trajectory.total_reward)):
        _, wrong = to_reward(reward)
        if wrong:
            trajectory.rewards, trajectory.score = [0.0] * len(trajectory.rewards), None
            trajectory.reward_shares = {}
            if trajectory.outcome is None or trajectory.outcome.is_behaviour:
                trajectory.outcome = Outcome.REWARD_FAILED
                trajectory.error = f"{what} {reward:.17g}; a reward must be {wrong}."
            return False
    return True


def _to_common_scale(trajectory: Trajectory, low: float, high: float) -> None:
    span = high - low
    trajectory.reward_shares = {name: share / span for name, share in trajectory.reward_shares.items()}
    if trajectory.score is not None:
        trajectory.score = (trajectory.score - low) / span
    elif trajectory.rewards:
        trajectory.rewards = [reward / span for reward in trajectory.rewards]
        trajectory.rewards[-1] -= low / span


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
    except Exception as error:
        trajectory.outcome, trajectory.error = failure_outcome(error, is_user_code=False)


def failure_outcome(error: Exception, *, is_user_code: bool = True) -> tuple[Outcome, str]:
    """The outcome of an episode in which this was raised, and what to say about it.

    Args:
        error: What was raised.
        is_user_code: Whether the user's code may have raised it. If not, an exception that `errors.is_bug`
            accepts is a bug of turnsmith.

    Example:
        >>> failure_outcome(EnvironmentFailure("Game.step raised KeyError."))
        (<Outcome.ENVIRONMENT_FAILED: 'environment_failed'>, 'Game.step raised KeyError.')
        >>> failure_outcome(KeyError("sword"), is_user_code=False)[0]
        <Outcome.INTERNAL_ERROR: 'internal_error'>
    """
    if (is_ours if is_user_code else is_bug)(error):
        return Outcome.INTERNAL_ERROR, internal_error(error).text
    message = str(error) if isinstance(error, EnvironmentFailure) else describe_failure("The environment", error)
    if isinstance(error, EnvironmentTimeout):
        return Outcome.ENVIRONMENT_TIMEOUT, message
    if isinstance(error, Overloaded):
        return Outcome.OVERLOADED, message
    return Outcome.WORKER_LOST if isinstance(error, WorkerLost) else Outcome.ENVIRONMENT_FAILED, message
