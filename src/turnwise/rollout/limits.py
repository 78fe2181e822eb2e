"""What one episode may use."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.config import InferenceConfig
from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """Turns, tokens and seconds of one episode.

    Example:
        >>> Limits.of(InferenceConfig(max_turns=4, multi_turn=False))
        Limits(turns=1, tokens=2048, seconds=600.0, prompt_tokens=1024)
    """

    turns: int = 10
    """Most turns."""
    tokens: int = 2048
    """Most tokens after the opening prompt, the model's and the environment's together."""
    seconds: float = 600.0
    """Longest wall-clock time."""
    prompt_tokens: int = 1024
    """Longest opening prompt; a longer one is an error, never a silent cut."""

    def __post_init__(self) -> None:
        for name in ("turns", "tokens", "seconds", "prompt_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"The limit on {name} is {getattr(self, name)}; it must be more than 0.")

    @classmethod
    def of(cls, config: InferenceConfig) -> Limits:
        """The limits that a run's config sets."""
        turns = config.max_turns if config.multi_turn else 1
        return cls(turns, config.max_episode_tokens, config.max_seconds, config.max_prompt_tokens)
