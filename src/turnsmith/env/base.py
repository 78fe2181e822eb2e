"""The class that users inherit from to write an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from turnsmith.config import EnvironmentConfig


class BaseEnvironment(ABC):
    """One episode's world: text out, text in, a reward for every action.

    Write `reset` and `step`; all else has a default. Methods may be plain (they run in a thread, so they may block) or
    `async`. An object serves one episode; the next one gets a fresh object.

    Example:
        >>> class Echo(BaseEnvironment):
        ...     def reset(self) -> str:
        ...         return "Say yes."
        ...
        ...     def step(self, action: str):
        ...         return "Thanks.", float(action == "yes"), True, {}
        >>> environment = Echo({"max_steps": 3})
        >>> environment.reset(), environment.step("yes"), environment.max_steps
        ('Say yes.', ('Thanks.', 1.0, True, {}), 3)
    """

    # Class-level defaults, so that a subclass which forgets `super().__init__` still works.
    config: EnvironmentConfig = EnvironmentConfig()
    state: Any = None
    """Free for the user."""
    done: bool = False
    """Whether the task is over. Setting it inside `step` ends the episode, whatever `step` returns."""
    step_count: int = 0
    """Actions so far. Counted for you when `step` does not count itself."""
    max_steps: int = 10
    """After this many actions the episode is cut."""
    last_observation: str = ""
    """What the model was told last; kept for you."""
    reward_range: tuple[float, float] | None = None
    """The least and the most that an episode can get, if you declare it; training warns of a reward outside it."""

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        if config is None:
            config = EnvironmentConfig()
        elif isinstance(config, Mapping):
            config = EnvironmentConfig(**config)
        self.config = config
        self.max_steps = config.max_steps
        self.state = None
        self.done = False
        self.step_count = 0

    @property
    def _done(self) -> bool:
        # The older name of `done`; environments written against it keep working.
        return self.done

    @_done.setter
    def _done(self, value: bool) -> None:
        self.done = value

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Start the episode and return the first observation, a string.

        Write it as `reset(self) -> str`. Take a parameter `seed` to be given the episode's seed (episodes of one group
        get the same), and `task` to be given the dataset's row as a dict. Gymnasium's `(observation, info)` is fine.
        """

    @abstractmethod
    def step(self, action: str) -> Any:
        """Do what the model said, and return `(observation, reward, done, info)`.

        Gymnasium's `(observation, reward, terminated, truncated, info)` and a `StepResult` are accepted as well.
        """

    def get_state_description(self) -> str:
        """The current state as text; by default the last observation."""
        return self.last_observation

    def get_prompt_prefix(self) -> str:
        """The system prompt, asked for after `reset`; an empty string means none."""
        return ""

    def is_done(self) -> bool:
        """Whether the episode is over: the task is done, or `max_steps` actions were taken."""
        return self.done or self.step_count >= self.max_steps

    def close(self) -> Any:
        """Release what the environment holds. Called once, also after a failure."""
