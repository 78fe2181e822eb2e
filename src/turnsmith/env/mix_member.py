"""One environment of a mix, and its own settings."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from turnsmith.errors import ConfigError


@dataclass(frozen=True)
class MixMember:
    """One environment of a mix, with its own settings.

    Example:
        >>> from turnsmith.env.examples import GuessNumber
        >>> MixMember(GuessNumber, weight=0)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: GuessNumber has the weight 0 in the mix; it must be a number above 0. To leave \
it out, remove it.
    """

    environment: Any
    """Any environment that `RayPPOTrainer` takes; an `EnvironmentSpec` can have its own settings."""
    _: KW_ONLY
    weight: float = 1.0
    """Its share of the groups, relative to the weights of the others."""
    reward_range: tuple[float, float] | None = None
    """The lowest and the highest reward of an episode; rewards are scaled so that these become 0 and 1. None: rewards
    stay as they are."""
    max_turns: int | None = None
    """Overrides `inference.max_turns`."""
    max_seconds: float | None = None
    """Overrides `inference.max_seconds`."""
    dataset: Any = field(default=None, repr=False)
    """Its tasks, as `RayPPOTrainer(dataset=...)` takes them; None: only seeds differ."""

    def __post_init__(self) -> None:
        name = getattr(self.environment, "__name__", None) or getattr(self.environment, "name", self.environment)
        if not _is_number(self.weight) or self.weight <= 0:
            raise ConfigError(
                f"{name} has the weight {self.weight} in the mix; it must be a number above 0. To leave it out, "
                "remove it."
            )
        object.__setattr__(self, "weight", float(self.weight))
        for limit in ("max_turns", "max_seconds"):
            value = getattr(self, limit)
            if value is not None and (not _is_number(value) or value <= 0):
                raise ConfigError(f"{name} has {limit}={value} in the mix; it must be more than 0, or None.")
        if self.reward_range is not None:
            object.__setattr__(self, "reward_range", _range(name, self.reward_range))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _range(name: object, given: Any) -> tuple[float, float]:
    ends = tuple(given) if isinstance(given, tuple | list) else ()
    if len(ends) != 2 or not all(map(_is_number, ends)) or not ends[0] < ends[1]:
        raise ConfigError(
            f"{name} has reward_range={given} in the mix; it must be the lowest and the highest reward of an episode, "
            "such as (0, 10)."
        )
    return float(ends[0]), float(ends[1])
