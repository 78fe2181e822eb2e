"""A reward function bound to its environment, with a declared range."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnsmith.concurrency.loop_thread import run_blocking
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.rollout.rewards.reward_function import (
    RewardFailure,
    RewardFunction,
    compute_score,
    finite_reward,
    function_name,
    takes_environment,
)
from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    import torch

_SECONDS = 600.0


class EnvironmentRewardWrapper:
    """A reward function that must stay in its range; pass it to the trainer as `reward_fn`.

    Args:
        environment: The environment's class, `"module:Name"`, or an instance (its class and config are used).
        reward_fn: `reward_fn(trajectory)` or `reward_fn(trajectory, environment)`, sync or async; None: the sum of the
            environment's rewards.
        low: The lowest reward.
        high: The highest reward. An episode with a reward outside the range ends as `reward_failed` and is not trained
            on.

    Example:
        >>> from turnsmith.env.examples import GuessNumber
        >>> reward = EnvironmentRewardWrapper(GuessNumber, lambda trajectory: trajectory.num_turns, high=2)
        >>> reward(Trajectory(actions=["8", "9"]))
        2.0
        >>> reward(Trajectory(actions=["8", "9", "10"]))
        Traceback (most recent call last):
        turnsmith.rollout.rewards.reward_function.RewardFailure: <lambda> returned 3, which is outside -inf to 2.
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
            raise ConfigError(f"low is {low:g} and high is {high:g}; low must be below high.")
        # Not the instance itself: this object is sent to worker processes, which build fresh environments.
        self.environment = EnvironmentSpec.of(environment)
        self.reward_fn: RewardFunction = reward_fn or _sum_of_rewards
        self.low = low
        self.high = high
        self.__name__ = function_name(self.reward_fn)

    def __call__(self, trajectory: Trajectory, environment: Any = None) -> float | Awaitable[float]:
        """The episode's reward; awaitable if `reward_fn` is async."""
        args = (trajectory, environment) if takes_environment(self.reward_fn) else (trajectory,)
        value = self.reward_fn(*args)
        return self._await_and_check(value) if inspect.isawaitable(value) else self._check(value)

    def compute_batch_rewards(self, responses: Sequence[str], seeds: Sequence[int] | None = None) -> torch.Tensor:
        """Play each response as the only action of an episode; the rewards as float32 of shape `(len(responses),)`.

        Episode `i` has seed `i` unless `seeds` are given.
        """
        seeds = range(len(responses)) if seeds is None else seeds
        rewards = [run_blocking(self._play(response, seed)) for response, seed in zip(responses, seeds, strict=True)]
        torch: Any = import_module("torch")  # by name: this package must not import torch when it loads
        return torch.tensor(rewards, dtype=torch.float32)

    async def _play(self, response: str, seed: int) -> float:
        host = EnvironmentHost(self.environment)
        try:
            state = await host.reset(seed)
            result = await host.step(response)
            done = result.terminated or result.truncated
            trajectory = Trajectory([state], [response], [result.reward], [done], [result.info], seed=seed)
            return await compute_score(self, trajectory, host.environment, _SECONDS, host.thread)
        finally:
            await host.close()

    async def _await_and_check(self, value: Awaitable[float]) -> float:
        return self._check(await value)

    def _check(self, value: Any) -> float:
        reward = finite_reward(self.__name__, value)
        if not self.low <= reward <= self.high:
            raise RewardFailure(f"{self.__name__} returned {reward:g}, which is outside {self.low:g} to {self.high:g}.")
        return reward


def _sum_of_rewards(trajectory: Trajectory) -> float:
    return math.fsum(trajectory.rewards)
