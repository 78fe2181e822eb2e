"""Refuses, before anything starts, what could not be sent to where the environments run."""

from __future__ import annotations

from turnsmith.env.isolation.settings import HERE, TCP
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.rollout.rewards.reward_function import RewardFunction, takes_environment


def check_isolation(spec: EnvironmentSpec, reward_fn: RewardFunction | None = None) -> None:
    """Raise a `ConfigError` if the environment or the reward function cannot get to the workers.

    A reward function that takes the environment runs where the environment is, because the object itself is only there.

    Example:
        >>> spec = EnvironmentSpec("my_game:MyGame", isolation="tcp://10.0.0.7:9000")
        >>> check_isolation(spec, lambda trajectory, environment: environment.score)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The reward function takes the environment, and environment.isolation=\
tcp://10.0.0.7:9000 runs no code but the environment's own: let it take only the trajectory, and put what it needs \
into the step's info.
    """
    if spec.mode in HERE:
        return
    from turnsmith.env.isolation.serialization import define_function, define_spec

    is_plain = spec.mode.startswith(TCP)
    define_spec(spec, 0, plain=is_plain)
    if reward_fn is None or not takes_environment(reward_fn):
        return
    if is_plain:
        raise ConfigError(
            f"The reward function takes the environment, and environment.isolation={spec.mode} runs no code but the "
            "environment's own: let it take only the trajectory, and put what it needs into the step's info."
        )
    define_function(reward_fn, 0)
