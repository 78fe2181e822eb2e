"""Limits on one episode."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.config import InferenceConfig
from turnsmith.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one episode. Each of them ends the episode with an outcome of its own.

    Example:
        >>> Limits.of(InferenceConfig(max_turns=4, multi_turn=False, max_tool_calls=3))
        Limits(turns=1, tokens=2048, seconds=600.0, prompt_tokens=2048, turn_tokens=None, tool_calls=3)
    """

    turns: int = 10
    """Maximum number of turns; outcome `turn_limit`."""
    tokens: int = 2048
    """Maximum number of tokens after the opening prompt, the model's and the environment's; outcome `token_limit`."""
    seconds: float = 600.0
    """Maximum time in the environment and tools, waiting for the engine not included; outcome `time_limit`."""
    prompt_tokens: int = 2048
    """Maximum length of the opening prompt; a longer one is an error and never truncated."""
    turn_tokens: int | None = None
    """Maximum number of tokens per turn, overriding `Sampling.max_tokens`; outcome `turn_token_limit`. None: a turn is
    cut at `Sampling.max_tokens`, and the episode goes on with the text so far as the action."""
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
        for name in ("turn_tokens", "tool_calls"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"The limit on {name} is {getattr(self, name)}; it must be more than 0, or None.")

    @classmethod
    def of(cls, config: InferenceConfig) -> Limits:
        """The limits in a run's config."""
        return cls(
            turns=config.max_turns if config.multi_turn else 1,
            tokens=config.max_episode_tokens,
            seconds=config.max_seconds,
            prompt_tokens=config.max_prompt_tokens,
            turn_tokens=config.max_turn_tokens,
            tool_calls=config.max_tool_calls,
        )
