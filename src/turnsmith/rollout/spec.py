"""How episodes are played, apart from what generates the tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference.engine import Sampling
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.players import Players
from turnsmith.rollout.rewards.reward_function import RewardFunction
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.step_tool import EnvironmentStepTool


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
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
    reward_fn: RewardFunction | None = None
    """Scores a finished episode; None: its reward is the sum of the environment's rewards."""
    tools: ToolRegistry | None = None
    """Offered beside the environment's own `@tool` methods."""
    parser: ActionParser | None = None
    """Reads tool calls; None: `FunctionCallingParser`."""
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
