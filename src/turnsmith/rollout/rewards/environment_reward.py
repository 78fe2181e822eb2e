"""A reward function tied to its environment, with a range that it must keep to."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.loop_thread import run_blocking
from turnsmith.rollout.rewards.reward_function import (
    RewardFailure,
    RewardFunction,
    compute_score,
    finite_reward,
    takes_environment,
)
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    import torch

_SECONDS = 600.0


class EnvironmentRewardWrapper:
    """Pays for an episode; give it to the trainer as `reward_fn`.

    Args:
        environment: The environment's class, `"module:Name"`, or an instance (then its class and config are taken).
        reward_fn: `reward_fn(trajectory)` or `reward_fn(trajectory, environment)`, sync or async; None: the sum of what
            the environment paid.
        low: The least it may pay.
        high: The most it may pay. An episode paid outside of the range ends as `reward_failed`, and is not trained on.

    Example:
        >>> from turnsmith.env.examples import GuessNumber
        >>> reward = EnvironmentRewardWrapper(GuessNumber, lambda trajectory: trajectory.num_turns, high=2)
        >>> reward(Trajectory(actions=["8", "9"]))
        2.0
        >>> reward(Trajectory(actions=["8", "9", "10"]))
        Traceback (most recent call last):
        turnsmith.rollout.rewards.reward_function.RewardFailure: <lambda> paid 3, which is not from -inf to 2.
        >>> EnvironmentRewardWrapper(GuessNumber).compute_batch_rewards(["9", "12"], seeds=[5, 5])
        tensor([1., 0.])
    """

    def __init__(
        self,
        environment: Any,
        reward_fn: RewardFunction | None = None,
        *,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        if not low < high:
            raise ConfigError(f"A reward from {low:g} to {high:g} cannot be: set low below high.")
        # A recipe, not the object: workers in other processes are sent this, and build fresh environments.
        self.environment = EnvironmentSpec.of(environment)
        self.reward_fn: RewardFunction = reward_fn or _own_rewards
        self.low = low
        self.high = high
        self.__name__ = getattr(self.reward_fn, "__name__", type(self.reward_fn).__name__)

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> float | Awaitable[float]:
        """The episode's reward; to be awaited if `reward_fn` is async."""
        args = (trajectory, environment) if takes_environment(self.reward_fn) else (trajectory,)
        paid = self.reward_fn(*args)
        return self._when_ready(paid) if inspect.isawaitable(paid) else self._checked(paid)

    def compute_batch_rewards(self, responses: Sequence[str], seeds: Sequence[int] | None = None) -> torch.Tensor:
        """Play each response as the one action of an episode; the rewards as float32 of shape `(len(responses),)`.

        Episode `i` has seed `i`, unless `seeds` are given.
        """
        starts = range(len(responses)) if seeds is None else seeds
        paid = [run_blocking(self._play(*one)) for one in zip(responses, starts, strict=True)]
        # By name: this room must work, and load fast, where there is no torch.
        made: Any = import_module("torch")
        return made.tensor(paid, dtype=made.float32)

    async def _play(self, response: str, seed: int) -> float:
        host = EnvironmentHost(self.environment)
        try:
            state = await host.reset(seed)
            result = await host.step(response)
            done = result.terminated or result.truncated
            trajectory = Trajectory([state], [response], [result.reward], [done], [result.info], seed=seed)
            return await compute_score(self, trajectory, host.environment, _SECONDS)
        finally:
            await host.close()

    async def _when_ready(self, paid: Awaitable[float]) -> float:
        return self._checked(await paid)

    def _checked(self, paid: Any) -> float:
        score = finite_reward(self.__name__, paid)
        if not self.low <= score <= self.high:
            raise RewardFailure(f"{self.__name__} paid {score:g}, which is not from {self.low:g} to {self.high:g}.")
        return score


def _own_rewards(trajectory: Trajectory) -> float:
    return math.fsum(trajectory.rewards)
