"""Games of PettingZoo in turns (AEC), in words: `pettingzoo:classic/tictactoe_v3`, with others in the other seats."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.spaces import describe_answer, kind_of, read_action, show_observation
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.importing import install_line

_MASK = "action_mask"
_DEFAULT_STEPS, _MOST_STEPS = EnvironmentConfig().max_steps, 1000


class PettingZooEnvironment(BaseEnvironment):
    """One game. The model plays one seat; `players.opponent`, or `players.SEAT` with more seats, names the others.

    Settings of your own go to the game's `env(...)`, apart from `seat`, the seat of the model (the first by default).
    An answer of the model that is no possible move is told to it, and the game stays as it is; in place of such an
    answer of another player a possible move is drawn, by the episode's seed.

    Args:
        name: The game's module in PettingZoo, such as `classic/tictactoe_v3`.
        config: The settings.
        observe: `observe(env, observation)` returns what a player reads. Default: the observation as JSON.
        act: `act(env, text)` returns the action for an answer, or raises `ValueError` with what the player is told.
    """

    def __init__(
        self,
        name: str,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        *,
        observe: Callable[[Any, Any], str] | None = None,
        act: Callable[[Any, str], Any] | None = None,
    ) -> None:
        super().__init__(config)
        settings = self.config.own_settings()
        self.name, self.observe, self.act = name, observe, act
        seat = str(settings.pop("seat", ""))
        self.env: Any = _make(name, settings)
        self.env.reset(seed=0)
        self.seats = list(self.env.possible_agents)
        self.seat = seat or self.seats[0]
        if self.seat not in self.seats:
            raise ConfigError(f"{name} has no seat {self.seat!r}; it has {', '.join(self.seats)}.")
        self._check()
        if self.max_steps == _DEFAULT_STEPS:
            self.max_steps = _MOST_STEPS  # games end by themselves
        self._told: dict[str, list[dict[str, str]]] = {}
        self._random = random.Random(0)
        self._drawn = 0

    def reset(self, seed: int = 0) -> str:
        """Start the game, and let others move until it is the model's turn."""
        self.env.reset(seed=seed)
        self._told, self._random, self._drawn = {}, random.Random(seed), 0
        self._play_others()
        observation, _, terminated, truncated, info = self.env.last()
        if terminated or truncated:
            raise ConfigError(f"{self.name} was over before the move of {self.seat}.")
        return self._show(self.seat, observation, info)

    def get_prompt_prefix(self) -> str:
        """How to answer."""
        return self._rules(self.seat)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make the model's move, then those of the others; the reward is that of the seat until its next turn."""
        try:
            self.env.step(self._read(action))
        except ValueError as error:
            return str(error), 0.0, False, False, {"invalid_action": True}
        self._play_others()
        observation, reward, terminated, truncated, info = self.env.last()
        about = {"drawn_moves": self._drawn} if self._drawn else {}
        if terminated or truncated:
            about["success"] = reward > 0
            return f"The game is over. Your reward: {reward:g}", float(reward), terminated, truncated, about
        return self._show(self.seat, observation, info), float(reward), False, False, about

    def close(self) -> None:
        """Close it."""
        self.env.close()

    def _play_others(self) -> None:
        """Let others move until the model's turn, which also comes when the game is over for it."""
        while self.env.agent_selection != self.seat:
            seat = self.env.agent_selection
            observation, _, terminated, truncated, info = self.env.last()
            if terminated or truncated:
                self.env.step(None)
                continue
            told = self._told.setdefault(seat, [{"role": "system", "content": self._rules(seat)}])
            told.append({"role": "user", "content": self._show(seat, observation, info)})
            answer = self.ask("opponent" if len(self.seats) == 2 else seat, told)
            told.append({"role": "assistant", "content": answer})
            try:
                self.env.step(self._read(answer))
            except ValueError:
                self._drawn += 1
                self.env.step(self._draw(seat, observation, info))

    def _read(self, text: str) -> Any:
        seat = self.env.agent_selection
        if self.act is not None:
            return self.act(self.env, text)
        action = read_action(self.env.action_space(seat), text)
        observation, *_, info = self.env.last()
        possible = _possible(observation, info)
        if possible is not None and action not in possible:
            raise ValueError(f"{action} is not possible now. Possible: {', '.join(map(str, possible))}.")
        return action

    def _draw(self, seat: str, observation: Any, info: Any) -> Any:
        possible = _possible(observation, info)
        if possible:
            return self._random.choice(possible)
        space = self.env.action_space(seat)
        space.seed(self._random.randrange(2**31))
        return space.sample()

    def _rules(self, seat: str) -> str:
        start = f"You are {seat} in {self.name.rpartition('/')[2].rpartition('_v')[0]}."
        return start if self.act else f"{start} Answer with {describe_answer(self.env.action_space(seat))}."

    def _show(self, seat: str, observation: Any, info: Any) -> str:
        if self.observe is not None:
            return self.observe(self.env, observation)
        possible = _possible(observation, info)
        seen = (
            observation.get("observation") if isinstance(observation, Mapping) and _MASK in observation else observation
        )
        text = show_observation(self.env.observation_space(seat), seen)
        return text if possible is None else f"{text}\nPossible: {', '.join(map(str, possible))}"

    def _check(self) -> None:
        for seat in self.seats:
            if self.act is None and not kind_of(self.env.action_space(seat)):
                raise ConfigError(f"Actions of {seat} have no text form: pass act=, a function of env and text.")
            if self.observe is None and not kind_of(self.env.observation_space(seat)):
                raise ConfigError(
                    f"Observations of {seat} have no text form: pass observe=, a function of env and observation."
                )


def _possible(observation: Any, info: Any) -> list[int] | None:
    """The moves that are possible now; None if the game does not say."""
    for holder in (observation, info):
        mask = holder.get(_MASK) if isinstance(holder, Mapping) else None
        if mask is not None:
            return [number for number, allowed in enumerate(mask) if allowed]
    return None


def _make(name: str, settings: dict[str, Any]) -> Any:
    try:
        import_module("pettingzoo")
    except ImportError as error:
        raise MissingDependency(f"Its games need PettingZoo ({error}): {install_line('pettingzoo')}.") from error
    try:
        made: Any = import_module(f"pettingzoo.{name.replace('/', '.')}")
        return made.env(**settings)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"PettingZoo cannot make {name}: {type(error).__name__}: {error}") from error
