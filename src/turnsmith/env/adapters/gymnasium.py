"""Gymnasium's environments, in words: `gymnasium:FrozenLake-v1`, an `Env` class, or a function that makes one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.spaces import describe_answer, kind_of, read_action, show_observation
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.importing import install_line

ACTIONS = {
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "coast", "right"),
}
"""The meaning of each action's number, from the documentation of the environments."""
_COLOURED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_DEFAULT_STEPS = EnvironmentConfig().max_steps


class GymnasiumEnvironment(BaseEnvironment):
    """An environment of Gymnasium, played in words.

    Settings of your own (`environment.is_slippery=false`) go to `gymnasium.make`, and the row of a dataset to
    `reset(options=...)`. Episodes end where Gymnasium ends them, and after `environment.max_steps` if you set it.

    Args:
        env: An id (`FrozenLake-v1`), a `gymnasium.Env`, or what `gymnasium.make` takes.
        config: The settings.
        observe: `observe(env, observation)` returns what the model reads. Default: the text that `env` renders, if it
            does, and the observation as JSON.
        act: `act(env, text)` returns the action for an answer of the model, or raises `ValueError` with what the model
            is told. A list of names for the actions of a `Discrete` space does as well.

    Example:
        >>> from types import SimpleNamespace
        >>> GymnasiumEnvironment(SimpleNamespace(action_space=object(), observation_space=object(), spec=None))
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: Actions of object have no text form: pass act=, a function of env and text.
    """

    def __init__(
        self,
        env: Any,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        observe: Callable[[Any, Any], str] | None = None,
        act: Callable[[Any, str], Any] | Sequence[str] | None = None,
    ) -> None:
        super().__init__(config)
        self.env = env if hasattr(env, "action_space") else _make(env, self.config)
        name = getattr(self.env.spec, "id", "") or type(self.env).__name__
        self.name = name.rpartition("/")[2]
        self.observe = observe
        self.act = act if callable(act) else None
        short = self.name.partition("-v")[0]
        self.action_names = tuple(ACTIONS.get(short, ()) if act is None or callable(act) else act)
        self._check()
        own = getattr(self.env.spec, "max_episode_steps", None)
        if own and self.max_steps == _DEFAULT_STEPS:
            self.max_steps = own

    def reset(self, seed: int = 0, task: Mapping[str, Any] | None = None) -> str:
        """Start an episode."""
        observation, _ = self.env.reset(seed=seed, options=None if task is None else dict(task))
        return self._show(observation)

    def get_prompt_prefix(self) -> str:
        """How to answer."""
        if self.act is not None:
            return f"You are playing {self.name}."
        return f"You are playing {self.name}. Answer with {describe_answer(self.env.action_space, self.action_names)}."

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do the model's action; if it can't be read, say so and leave the environment as it is."""
        try:
            if self.act is not None:
                chosen = self.act(self.env, action)
            else:
                chosen = read_action(self.env.action_space, action, self.action_names)
        except ValueError as error:
            return str(error), 0.0, False, False, {"invalid_action": True}
        observation, reward, terminated, truncated, info = self.env.step(chosen)
        return self._show(observation), float(reward), bool(terminated), bool(truncated), dict(info)

    def close(self) -> None:
        """Close it."""
        self.env.close()

    def _check(self) -> None:
        for space, given, what, advice in (
            (self.env.action_space, self.act, "Actions", "act=, a function of env and text"),
            (self.env.observation_space, self.observe, "Observations", "observe=, a function of env and observation"),
        ):
            if given is None and not kind_of(space):
                described = str(space) if hasattr(space, "contains") else type(space).__name__
                raise ConfigError(f"{what} of {described[:120]} have no text form: pass {advice}.")

    def _show(self, observation: Any) -> str:
        if self.observe is not None:
            return self.observe(self.env, observation)
        text = show_observation(self.env.observation_space, observation)
        if getattr(self.env, "render_mode", None) != "ansi":
            return text
        # The highlighted place is often the player's.
        rendered = _COLOUR.sub("", _COLOURED.sub(r"[\1]", str(self.env.render())))
        return f"{rendered.strip()}\n\nObservation: {text}"


def _make(env: Any, config: EnvironmentConfig) -> Any:
    try:
        gymnasium: Any = import_module("gymnasium")
    except ImportError as error:
        raise MissingDependency(f"Environments of Gymnasium need it: {install_line('gymnasium')}.") from error
    settings = config.own_settings()
    try:
        if isinstance(env, str) and ":" in env:  # Gymnasium's `module:ID`, which only its `make` reads
            module, _, env = env.partition(":")
            import_module(module)
        spec = gymnasium.spec(env) if isinstance(env, str) else env
        if "render_mode" not in settings and "ansi" in _render_modes(gymnasium, spec):
            settings["render_mode"] = "ansi"
        return gymnasium.make(env, **settings)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise ConfigError(f"Gymnasium cannot make {env}: {error}") from None


def _render_modes(gymnasium: Any, spec: Any) -> Sequence[str]:
    made_by = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(made_by) if isinstance(made_by, str) else made_by
    return getattr(creator, "metadata", {}).get("render_modes", ())
