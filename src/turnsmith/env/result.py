"""Reading what the user's code returned or raised: one shape for what is right, one sentence for what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from turnsmith.errors import EnvironmentFailure
from turnsmith.text import replace_surrogates

MOST_TEXT = 2**22
"""Characters of one observation: more than any model reads, and little enough to be kept many times over."""


@dataclass(slots=True)
class StepResult:
    """What one step gave, in one shape whatever the environment returned. A `step` may return one itself.

    Example:
        >>> StepResult("You are out.", reward=1.0, terminated=True).done
        True
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    """The task is over."""
    truncated: bool = False
    """The episode was cut (the environment's own step limit)."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether no further step may follow."""
        return self.terminated or self.truncated


def read_step(name: str, returned: Any) -> StepResult:
    """Read `(observation, reward, done, info)`, Gymnasium's five values, or a `StepResult`.

    Example:
        >>> read_step("Game.step", ("a door", 1, True, None))
        StepResult(observation='a door', reward=1.0, terminated=True, truncated=False, info={})
        >>> read_step("Game.step", StepResult("a door", truncated=True)).done
        True
        >>> read_step("Game.step", ("a door", None, True, {}))
        Traceback (most recent call last):
        turnsmith.errors.EnvironmentFailure: Game.step returned the reward None; it must be a finite number.
    """
    if isinstance(returned, StepResult):
        # Checked like the others, and never handed on itself: the environment may keep and change its own object.
        returned = (returned.observation, returned.reward, returned.terminated, returned.truncated, returned.info)
    if not isinstance(returned, (tuple, list)) or len(returned) not in (4, 5):
        got = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
        raise EnvironmentFailure(
            f"{name} returned {got}; it must return (observation, reward, done, info) "
            "or (observation, reward, terminated, truncated, info) or a StepResult."
        )
    observation, reward, *ends, info = returned
    terminated = _flag(name, "done" if len(ends) == 1 else "terminated", ends[0])
    truncated = len(ends) == 2 and _flag(name, "truncated", ends[1])
    if info is None:
        info = {}
    if not isinstance(info, dict):
        raise EnvironmentFailure(f"{name} returned an info of type {type(info).__name__}; it must be a dict.")
    return StepResult(read_text(name, observation), _reward(name, reward), terminated, truncated, info)


def read_text(name: str, text: Any) -> str:
    """Check that it is a string, and make it one that files and tokenizers can hold."""
    if not isinstance(text, str):
        raise EnvironmentFailure(f"{name} gave a text of type {type(text).__name__}; it must be a string.")
    if len(text) > MOST_TEXT:
        raise EnvironmentFailure(
            f"{name} gave a text of {len(text):,} characters; {MOST_TEXT:,} are the most that an environment may say."
        )
    return replace_surrogates(text)


def _flag(name: str, what: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    # `in` instead of isinstance: NumPy has a bool of its own.
    try:
        if value in (True, False):
            return bool(value)
    except Exception:  # an array, which has no single truth
        pass
    raise EnvironmentFailure(f"{name} returned {what} = {_short(value)}; it must be True or False.")


def _reward(name: str, value: Any) -> float:
    try:
        reward = math.nan if isinstance(value, (str, bytes)) else float(value)
    except Exception:
        reward = math.nan
    if not math.isfinite(reward):
        raise EnvironmentFailure(f"{name} returned the reward {_short(value)}; it must be a finite number.")
    return reward


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}..."
