"""Check before a run starts that the environment and the reward function can be sent to the workers."""

from __future__ import annotations

from turnsmith.env.isolation.settings import HERE, TCP
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.rollout.rewards.reward_function import RewardFunction, takes_environment


def check_isolation(spec: EnvironmentSpec, reward_fn: RewardFunction | None = None) -> None:
    """Raise a `ConfigError` if the environment or the reward function cannot be sent to the environment's workers.

    A reward function that takes the environment runs in the worker process, because only there is the instance.

    Example:
        >>> spec = EnvironmentSpec("my_game:MyGame", isolation="tcp://10.0.0.7:9000")
        >>> check_isolation(spec, lambda trajectory, environment: environment.score)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The reward function takes the environment, but the workers of \
environment.isolation=tcp://10.0.0.7:9000 run no code except the environment's own: let it take only the trajectory, \
and return what it needs in the info of `step`.
    """
    for one in spec.each():
        _check(one, reward_fn)


def _check(spec: EnvironmentSpec, reward_fn: RewardFunction | None) -> None:
    if spec.mode in HERE:
        return
    from turnsmith.env.isolation.serialization import define_function, define_spec

    is_remote = spec.mode.startswith(TCP)
    define_spec(spec, 0, plain=is_remote)
    if reward_fn is None or not takes_environment(reward_fn):
        return
    if is_remote:
        raise ConfigError(
            f"The reward function takes the environment, but the workers of environment.isolation={spec.mode} run no "
            "code except the environment's own: let it take only the trajectory, and return what it needs in the info "
            "of `step`."
        )
    define_function(reward_fn, 0)
