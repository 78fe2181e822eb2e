"""What one episode may use."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.config import InferenceConfig
from turnsmith.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What one episode may use. Each limit that is reached ends the episode in an outcome of its own.

    Example:
        >>> Limits.of(InferenceConfig(max_turns=4, multi_turn=False, max_tool_calls=3))
        Limits(turns=1, tokens=2048, seconds=600.0, prompt_tokens=1024, turn_tokens=None, tool_calls=3)
    """

    turns: int = 10
    """Most turns; the episode ends as `turn_limit` after the last one."""
    tokens: int = 2048
    """Most tokens after the opening prompt, the model's and the environment's together; then `token_limit`."""
    seconds: float = 600.0
    """Longest wall-clock time; then `time_limit`."""
    prompt_tokens: int = 1024
    """Longest opening prompt; a longer one is an error, never a silent cut."""
    turn_tokens: int | None = None
    """Most tokens of one turn, in place of `Sampling.max_tokens`; then `turn_token_limit`. None: a turn is cut at
    `Sampling.max_tokens`, and what was said counts as its action."""
    tool_calls: int | None = None
    """Most tool calls. The turn that asks for more is recorded, none of its calls is run, and the episode ends as
    `tool_call_limit`. None: any number."""

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "seconds", "prompt_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"The limit on {name} is {getattr(self, name)}; it must be more than 0.")
        for name in ("turn_tokens", "tool_calls"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"The limit on {name} is {getattr(self, name)}; it must be more than 0, or None.")

    @classmethod
    def of(cls, config: InferenceConfig) -> Limits:
        """The limits that a run's config sets."""
        return cls(
            turns=config.max_turns if config.multi_turn else 1,
            tokens=config.max_episode_tokens,
            seconds=config.max_seconds,
            prompt_tokens=config.max_prompt_tokens,
            turn_tokens=config.max_turn_tokens,
            tool_calls=config.max_tool_calls,
        )
