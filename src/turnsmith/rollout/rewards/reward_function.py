"""Call the user's reward function, sync or async, with or without the environment."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

from turnsmith.concurrency.clocks import OutOfTime
from turnsmith.concurrency.environment_threads import EnvironmentThread, EventLoopThread
from turnsmith.concurrency.threads import shared_threads
from turnsmith.env.isolation.remote_host import RemoteEnvironment
from turnsmith.errors import (
    ConfigError,
    EnvironmentFailure,
    InternalError,
    Overloaded,
    TurnsmithError,
    describe_failure,
    user_failure,
)
from turnsmith.tools.step_result import to_reward
from turnsmith.trajectory import Trajectory

RewardFunction = Callable[..., float | Awaitable[float]]
"""`reward_fn(trajectory)` or `reward_fn(trajectory, environment)`, sync or async."""


class RewardFailure(TurnsmithError):
    """The reward function raised, timed out, or did not return a number that can be trained on."""


async def compute_score(
    function: RewardFunction,
    trajectory: Trajectory,
    environment: Any,
    seconds: float,
    thread: EnvironmentThread | EventLoopThread | None = None,
) -> float:
    """Call the reward function in a thread, or await it, and check what it returns.

    Args:
        function: The reward function.
        trajectory: The episode.
        environment: The environment, if the function takes it.
        seconds: Its time limit, from when it begins.
        thread: The thread that the environment lives in; a function that takes the environment runs there.

    Raises:
        RewardFailure: It raised, took too long, or did not return a finite number.
        Overloaded: Its turn did not come, so it was never called.

    Example:
        >>> import asyncio
        >>> asyncio.run(
        ...     compute_score(lambda trajectory: sum(trajectory.rewards), Trajectory(rewards=[1, 2]), None, 9.0)
        ... )
        3.0
    """
    name = function_name(function)
    args = (trajectory, environment) if takes_environment(function) else (trajectory,)
    try:
        if isinstance(environment, RemoteEnvironment) and len(args) == 2:
            value = await environment.score(function, trajectory, seconds)
        elif thread is not None and len(args) == 2:
            value = await thread.run(_call, name, function, *args, limit=seconds)
        elif inspect.iscoroutinefunction(function):
            value = await EventLoopThread().run(_call, name, function, *args, limit=seconds)
        else:
            value = await shared_threads().run(_call, name, function, *args, limit=seconds)
            if inspect.isawaitable(value):
                value = await EventLoopThread().run(lambda: value, limit=seconds)
    except (RewardFailure, Overloaded, InternalError):
        raise
    except OutOfTime as error:
        raise RewardFailure(f"{name} took longer than {seconds:g} seconds.") from error
    except EnvironmentFailure as error:  # raised in the worker process, with a message that is already complete
        raise RewardFailure(str(error)) from error
    except Exception as error:
        raise RewardFailure(describe_failure(name, error)) from error
    return finite_reward(name, value)


def check_reward_function(function: RewardFunction | None) -> None:
    """Raise a ConfigError for a reward function that is written for verl's batches, by its first parameter.

    Example:
        >>> def reward_fn(data: "DataProto"): ...
        >>> check_reward_function(reward_fn)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: reward_fn takes verl's DataProto, but a reward function gets one episode: write \
reward_fn(trajectory) or reward_fn(trajectory, environment) and return its reward, a number. trajectory.actions has \
the model's responses, trajectory.rewards what `step` returned.
    """
    if function is None:
        return
    function = cast("RewardFunction", getattr(function, "reward_fn", function))  # in an EnvironmentRewardWrapper
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return
    annotation = getattr(first, "annotation", None)
    if "DataProto" in str(getattr(annotation, "__name__", annotation)):
        raise ConfigError(
            f"{function_name(function)} takes verl's DataProto, but a reward function gets one episode: write "
            "reward_fn(trajectory) or reward_fn(trajectory, environment) and return its reward, a number. "
            "trajectory.actions has the model's responses, trajectory.rewards what `step` returned."
        )


def _call(name: str, function: RewardFunction, *args: Any) -> Any:
    """Call the function directly, so that its errors name the line in the user's code."""
    try:
        value = function(*args)
    except (RewardFailure, Overloaded, OutOfTime):
        raise
    except Exception as error:
        raise user_failure(name, error) from error
    return _await(name, value) if inspect.isawaitable(value) else value


async def _await(name: str, value: Awaitable[Any]) -> Any:
    try:
        return await value
    except (RewardFailure, Overloaded, OutOfTime):
        raise
    except Exception as error:
        raise user_failure(name, error) from error


def function_name(function: RewardFunction) -> str:
    """The name to use for a reward function in messages: its own, or that of its class.

    Example:
        >>> function_name(len)
        'len'
    """
    return getattr(function, "__name__", type(function).__name__)


def takes_environment(function: RewardFunction) -> bool:
    """Whether a reward function is to be called with the environment too.

    Example:
        >>> takes_environment(lambda trajectory, environment: 0.0), takes_environment(lambda trajectory: 0.0)
        (True, False)
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins, such as `max`, have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return True
    second = [p for p in parameters if p.kind in positional][1:2]
    # An optional second parameter of another name (`scale=0.5`) is not meant for the environment.
    return any(p.default is inspect.Parameter.empty or p.name in ("environment", "env") for p in second)


def finite_reward(name: str, value: Any) -> float:
    """Convert the value that the function `name` returned to a float; raise a `RewardFailure` if that is impossible.

    Example:
        >>> finite_reward("judge", True)
        1.0
    """
    score, wrong = to_reward(value)
    if wrong:
        raise RewardFailure(f"{name} returned {str(value)[:80]!r}; it must return {wrong}.")
    return score
