"""How episodes are played, apart from what generates the tokens: the user's parts, the limits, and whether they fit."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from turnsmith.config import InferenceConfig
from turnsmith.env.isolation.settings import HERE
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference.engine import Sampling
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.players import Players
from turnsmith.rollout.rewards.reward_function import RewardFunction, takes_environment
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.step_tool import EnvironmentStepTool


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one episode. Each of them ends the episode with an outcome of its own.

    Example:
        >>> Limits.of(InferenceConfig(max_turns=4, multi_turn=False, max_tool_calls=3))
        Limits(turns=1, tokens=2048, seconds=600.0, prompt_tokens=2048, tool_calls=3)
    """

    turns: int = 10
    """Maximum number of turns; outcome `turn_limit`."""
    tokens: int = 2048
    """Maximum number of tokens after the opening prompt, the model's and the environment's; outcome `token_limit`."""
    seconds: float = 600.0
    """Maximum time in the environment and tools, waiting for the engine not included; outcome `time_limit`."""
    prompt_tokens: int = 2048
    """Maximum length of the opening prompt; a longer one is an error and never truncated."""
    tool_calls: int | None = None
    """Maximum number of tool calls; outcome `tool_call_limit`. The turn that exceeds it is recorded, but none of its
    calls is run. None: no limit."""

    @property
    def context(self) -> int:
        """The most tokens that the model sees."""
        return self.prompt_tokens + self.tokens

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "seconds", "prompt_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"The limit on {name} is {getattr(self, name)}; it must be more than 0.")
        if self.tool_calls is not None and not self.tool_calls > 0:
            raise ConfigError(f"The limit on tool_calls is {self.tool_calls}; it must be more than 0, or None.")

    @classmethod
    def of(cls, config: InferenceConfig) -> Limits:
        """The limits in a run's config."""
        return cls(
            turns=config.max_turns if config.multi_turn else 1,
            tokens=config.max_episode_tokens,
            seconds=config.max_seconds,
            prompt_tokens=config.max_prompt_tokens,
            tool_calls=config.max_tool_calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeParts:
    """The user's own parts of an episode besides its environment, written down here alone.

    The base of every value that episodes are played by: of a run, an evaluation, a check, and a process of theirs.

    Example:
        >>> EpisodeParts(reward_fn=len).parts()
        {'reward_fn': <built-in function len>, 'tools': None, 'parser': None}
    """

    reward_fn: RewardFunction | None = None
    """Scores a finished episode; None: its reward is the sum of the environment's rewards."""
    tools: ToolRegistry | None = None
    """Offered beside the environment's own `@tool` methods."""
    parser: ActionParser | None = None
    """Reads tool calls; None: `FunctionCallingParser`, and in training what `inference.tool_format` names."""

    def parts(self) -> dict[str, Any]:
        """The parts alone, by name: keywords for another value that has them."""
        return {part.name: getattr(self, part.name) for part in fields(EpisodeParts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec(EpisodeParts):
    """Everything that the episodes of a run share, except the engine and its chat template.

    Example:
        >>> from turnsmith.env.examples import GuessNumber
        >>> spec = RolloutSpec(environment=EnvironmentSpec.of(GuessNumber), limits=Limits(turns=3))
        >>> spec.limits.turns, spec.sampling.temperature, spec.failures.engine.retries
        (3, 1.0, 2)
    """

    environment: EnvironmentSpec
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    players: Players = field(default_factory=Players)
    """Who plays the other players that the environment asks."""
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """Used by `play_episode`; a single attempt (`run_episode`) never retries."""


def check_tools(environment: EnvironmentSpec, tools: ToolRegistry | None) -> None:
    """Raise a `ConfigError` if an `EnvironmentStepTool` was made with an environment that no episode is played in.

    Example:
        >>> from turnsmith.env.examples import GuessNumber, SimpleGameEnvironment
        >>> check_tools(EnvironmentSpec.of(GuessNumber), ToolRegistry([EnvironmentStepTool(SimpleGameEnvironment())]))
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The tool environment_step was made with a SimpleGameEnvironment, but its calls \
are steps of the episode's own environment, a GuessNumber: make it with that one.
    """
    for tool in tools or ():
        if isinstance(tool, EnvironmentStepTool):
            played = [each.load() for each in environment.each()]
            made_with = EnvironmentSpec(tool.environment_class).load()
            if not any(issubclass(one, made_with) or issubclass(made_with, one) for one in played):
                names = " or a ".join(one.__name__ for one in played)
                raise ConfigError(
                    f"The tool {tool.definition.name} was made with a {made_with.__name__}, but its calls are steps of "
                    f"the episode's own environment, a {names}: make it with that one."
                )


def check_isolation(spec: EnvironmentSpec, reward_fn: RewardFunction | None = None) -> None:
    """Raise a `ConfigError` if the environment or the reward function cannot be sent to the environment's workers.

    A reward function that takes the environment runs in the worker process, because only there is the instance.

    Example:
        >>> import threading
        >>> lock = threading.Lock()
        >>> check_isolation(
        ...     EnvironmentSpec("my_game:MyGame", isolation="process"), lambda trajectory, environment: lock.locked()
        ... )
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: ...
    """
    for one in spec.each():
        _check_isolation_of(one, reward_fn)


def _check_isolation_of(spec: EnvironmentSpec, reward_fn: RewardFunction | None) -> None:
    if spec.mode in HERE:
        return
    from turnsmith.env.isolation.serialization import define_function, define_spec

    define_spec(spec, 0)
    if reward_fn is not None and takes_environment(reward_fn):
        define_function(reward_fn, 0)
