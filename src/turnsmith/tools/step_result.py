"""Validates what an environment returned, and turns it into one type: `StepResult`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from turnsmith.errors import EnvironmentFailure
from turnsmith.text import replace_surrogates

MOST_TEXT = 2**22
"""Limit on the characters of one observation: more than any model reads."""
MOST_REWARD = 1e15
"""Limit on the size of a reward: training sums rewards and squares them, in float32, which ends at 3.4e38."""


@dataclass(slots=True)
class StepResult:
    """The result of one step, whatever form the environment returned it in. A `step` may return one itself.

    Example:
        >>> StepResult("You are out.", reward=1.0, terminated=True).done
        True
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    """The task is over."""
    truncated: bool = False
    """The episode was stopped early (the environment's own step limit)."""
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
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
        # The object is validated like the other forms, and copied, because the environment may change its own later.
        returned = (returned.observation, returned.reward, returned.terminated, returned.truncated, returned.info)
    if not isinstance(returned, (tuple, list)) or len(returned) not in (4, 5):
        what = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
        raise EnvironmentFailure(
            f"{name} returned {what}; it must return (observation, reward, done, info) "
            "or (observation, reward, terminated, truncated, info) or a StepResult."
        )
    observation, reward, *ends, info = returned
    terminated = _flag(name, "done" if len(ends) == 1 else "terminated", ends[0])
    truncated = len(ends) == 2 and _flag(name, "truncated", ends[1])
    if info is None:
        info = {}
    if not isinstance(info, dict):
        raise EnvironmentFailure(f"{name} returned an info of type {type(info).__name__}; it must be a dict.")
    observation = read_text(name, observation, "an observation")
    return StepResult(observation, read_reward(name, reward), terminated, truncated, info)


def read_text(name: str, text: Any, what: str = "a text") -> str:
    """Check that `text` is a string, and make it one that files and tokenizers can hold."""
    if not isinstance(text, str):
        raise EnvironmentFailure(f"{name} returned {what} of type {type(text).__name__}; it must be a string.")
    text = str.__str__(text)  # messages take plain strings only, and subclasses, such as NumPy's, may differ
    if len(text) > MOST_TEXT:
        raise EnvironmentFailure(f"{name} returned a text of {len(text):,} characters; the limit is {MOST_TEXT:,}.")
    return replace_surrogates(text)


def _flag(name: str, what: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    # `in` rather than isinstance: NumPy has its own bool.
    try:
        if value in (True, False):
            return bool(value)
    except Exception:  # an array has no single truth value
        pass
    raise EnvironmentFailure(f"{name} returned {what} = {_short(value)}; it must be True or False.")


def read_reward(name: str, value: Any) -> float:
    """Check that a reward is a number that can be trained on.

    Example:
        >>> read_reward("Game.step", 1e39)
        Traceback (most recent call last):
        turnsmith.errors.EnvironmentFailure: Game.step returned the reward 1e+39; it must be a number from -1e+15 to \
1e+15, because training computes in float32: scale it down.
    """
    reward, wrong = to_reward(value)
    if wrong:
        raise EnvironmentFailure(f"{name} returned the reward {_short(value)}; it must be {wrong}.")
    return reward


def to_reward(value: Any) -> tuple[float, str]:
    """A value as a reward, and what it must be instead if it cannot be one; empty if it can.

    Example:
        >>> to_reward(True), to_reward("1")
        ((1.0, ''), (nan, 'a finite number'))
    """
    try:
        reward = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (Exception, SystemExit):
        reward = math.nan
    if not math.isfinite(reward):
        return math.nan, "a finite number"
    if abs(reward) > MOST_REWARD:
        limits = f"a number from {-MOST_REWARD:g} to {MOST_REWARD:g}"
        return reward, f"{limits}, because training computes in float32: scale it down"
    return reward, ""


def _short(value: object, limit: int = 80) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}..."
