"""The base class of environments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.asking import ask, ask_async
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.tool import Tool


class BaseEnvironment(ABC):
    """An environment: observations out, actions in, a reward for every action, all as text and numbers.

    Write `reset` and `step`; everything else has a default. Methods may be plain (they run in a thread, so they may
    block) or `async`. Every episode gets a fresh object.

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

    # Write these two.

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Start the episode and return the first observation, a string.

        Write it as `reset(self) -> str`. Add a parameter `seed` to receive the episode's seed (the same for all
        episodes of a group) and `task` to receive the dataset's row as a dict. Gymnasium's `(observation, info)` is
        accepted as well, and so are messages, `[{"role": ..., "content": ...}]`, of which the last is the user's.
        """

    @abstractmethod
    def step(self, action: str) -> Any:
        """Apply the model's action and return `(observation, reward, done, info)`.

        Gymnasium's `(observation, reward, terminated, truncated, info)` and a `StepResult` are accepted as well.
        """

    # Replace if needed.

    reward_range: tuple[float, float] | None = None
    """Lowest and highest possible reward of an episode, if you declare it; training warns of rewards outside it."""
    step_tools: Sequence[ToolDefinition] = ()
    """Tools whose calls are steps, if they are known only at run time: set them in `reset`, and `step` gets a call
    as JSON, `{"name": ..., "arguments": {...}}`. A `@tool` method needs no entry."""

    def get_prompt_prefix(self) -> str:
        """The system prompt, called after `reset`; an empty string means none."""
        return ""

    def solve(self) -> Any:
        """What a perfect model would do next, for `turnsmith check --audit`; None means that it is not known.

        Called after `reset` and after each step. Return the text of the next action, or a list of all that are left; a
        tool call is `{"name": ..., "arguments": {...}}`. No model ever sees it.
        """
        return None

    def is_done(self) -> bool:
        """Whether the episode is over: the task is done, or `max_steps` actions have been taken."""
        return self.done or self.step_count >= self.max_steps

    def get_state_description(self) -> str:
        """The current state as text; the last observation by default."""
        return self.last_observation

    def close(self) -> Any:
        """Release resources. Called once, also after a failure."""

    # Kept for you. Defaults of the class, so that a subclass which forgets `super().__init__` still works.

    config: EnvironmentConfig = EnvironmentConfig()
    state: Any = None
    """For your own use."""
    _tools_of_server: Sequence[Tool] = ()
    """Those of an environment behind a server whose calls are no steps; known after `reset`."""
    done: bool = False
    """Whether the task is over. Setting it ends the episode, whatever `step` returns."""
    step_count: int = 0
    """Actions taken so far. Counted for you unless `step` does so itself."""
    max_steps: int = 10
    """The episode is truncated after this many actions."""
    last_observation: str = ""
    """The last observation."""

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        if config is None:
            config = EnvironmentConfig()
        elif not isinstance(config, EnvironmentConfig):
            config = EnvironmentConfig(**config)
        self.config = config
        self.max_steps = config.max_steps
        self.state = None
        self.done = False
        self.step_count = 0

    def ask(self, player: str, messages: str | Sequence[Mapping[str, str]]) -> str:
        """What another player says, such as a simulated user or an opponent; `players.NAME` decides who plays it.

        `messages` is the conversation as that player sees it; a string is one message. Put the answer into an
        observation: it is never trained on.
        """
        return ask(player, messages)

    async def ask_async(self, player: str, messages: str | Sequence[Mapping[str, str]]) -> str:
        """`ask` for async methods."""
        return await ask_async(player, messages)

    @property
    def _done(self) -> bool:
        # The older name of `done`, for environments written against it.
        return self.done

    @_done.setter
    def _done(self, value: bool) -> None:
        self.done = value
