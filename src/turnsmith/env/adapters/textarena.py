"""Games of TextArena: `textarena:GuessTheNumber-v0`. The model plays one seat; other seats need an opponent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MethodType
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.importing import install_line

Opponent = Callable[[str], str]
"""Gets everything that its seat has seen so far, and returns its move."""

_DEFAULT_STEPS, _MOST_STEPS = EnvironmentConfig().max_steps, 1000


class TextArenaEnvironment(BaseEnvironment):
    """One game. The model is shown what is new since its last move; the reward comes at the end.

    Args:
        name: The name that TextArena has for it. Its wrappers are left out: a conversation needs no repetition.
        config: Settings of your own are those of the game, apart from `players` and `seat`.
        opponent: Plays the other seats; None: `players.opponent` in the settings does.
        players: How many seats there are; by default 1 or, with an opponent, 2.
        seat: Which one the model has, counted from 0.
    """

    def __init__(
        self,
        name: str,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        *,
        opponent: Opponent | None = None,
        players: int = 0,
        seat: int = 0,
    ) -> None:
        super().__init__(config)
        self.name, self.opponent, self.seat = name, opponent, seat
        self.players = players or (2 if opponent else 1)
        self.settings = self.config.own_settings()
        self.settings.pop("players", None)
        self.settings.pop("seat", None)
        if self.max_steps == _DEFAULT_STEPS:
            self.max_steps = _MOST_STEPS  # games end by themselves
        self.textarena = _import()
        self.game: Any = self._make()
        self._seen: dict[int, list[str]] = {}

    def reset(self, seed: int = 0) -> str:
        """Start the game, and let opponents move until it is the model's turn."""
        self._seen = {player: [] for player in range(self.players)}
        try:
            self.game.reset(num_players=self.players, seed=seed)
        except (AssertionError, ValueError) as error:
            raise self._wrong_players(str(error)) from None
        except Exception as error:  # files that its package lacks
            raise ConfigError(f"TextArena cannot start {self.name}: {type(error).__name__}: {error}") from error
        if self.players == 1 and not isinstance(self.game.state, self.textarena.SinglePlayerState):
            raise self._wrong_players("Alone, it would never end.")  # some games for several players do not say so
        _mend_order(self.game.state)
        new, is_over = self._play_others()
        if is_over:
            raise ConfigError(f"textarena:{self.name} was over before the model's first move.")
        return new

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Make the model's move, then those of the others."""
        is_over = self._move(action)
        new = ""
        if not is_over:
            new, is_over = self._play_others()
        if not is_over:
            return new, 0.0, False, {}
        rewards, about = self.game.close()
        info = dict((about or {}).get(self.seat) or {})
        return str(info.get("reason") or "The game is over."), float((rewards or {}).get(self.seat, 0)), True, info

    def _wrong_players(self, why: str) -> ConfigError:
        return ConfigError(
            f"textarena:{self.name} is not a game for {self.players}: {why} Pass `opponent=`, a function of what "
            "its seat has seen, to `TextArenaEnvironment`, or set environment.players, how many seats there are, "
            "and players.opponent, who plays the others."
        )

    def _play_others(self) -> tuple[str, bool]:
        """Until the model's turn; returns what is new to the model, and whether the game is over."""
        while True:
            player, observation = self.game.get_observation()
            new = self._new_text(player, observation)
            self._seen[player].append(new)
            if player == self.seat:
                return new, False
            seen = "\n\n".join(self._seen[player])
            if self._move(self.opponent(seen) if self.opponent else self.ask("opponent", seen)):
                return "", True

    def _move(self, action: str) -> bool:
        # Most games look for a move in square brackets.
        is_over, _ = self.game.step(action if re.search(r"\[.*\]", action) else f"[{action.strip()}]")
        return bool(is_over)

    def _new_text(self, player: int, observation: Any) -> str:
        if isinstance(observation, str):
            return observation
        texts: list[str] = []
        for sender, text, kind in observation:
            if not isinstance(sender, int):  # Countdown and others pass the player's own move in another order
                continue
            is_move = getattr(kind, "name", kind) == "PLAYER_ACTION"
            is_own_move = is_move and (sender == player or self.players == 1)
            if not is_own_move:
                texts.append(f"Player {sender}: {text}" if sender >= 0 else str(text))
        return "\n".join(texts)

    def _make(self) -> Any:
        registered = self.textarena.envs.registration.ENV_REGISTRY
        if self.name not in registered:
            close = get_close_matches(self.name, registered, n=1)
            hint = f" Did you mean textarena:{close[0]}?" if close else ""
            raise ConfigError(f"TextArena has no game {self.name!r}.{hint}")
        try:
            game = self.textarena.make(self.name, **self.settings)
        except LookupError as error:
            corpus = re.search(r"nltk\.download\('(\w+)'\)", str(error))
            download = f"python -m nltk.downloader {corpus[1] if corpus else 'words averaged_perceptron_tagger_eng'}"
            raise ConfigError(
                f"textarena:{self.name} needs word lists that are not on this machine: run `{download}` where "
                "there is a network, and copy the folder nltk_data from your home."
            ) from error
        except Exception as error:  # several of its games cannot be imported, or need a key or a file that is not there
            raise ConfigError(f"TextArena cannot make {self.name}: {type(error).__name__}: {error}") from error
        while isinstance(game, self.textarena.Wrapper):
            game = game.env
        return game


def _mend_order(state: Any) -> None:
    """Countdown, Cryptarithm, Slitherlink and ThreeCardMonte pass the reward of an invalid move before its reason."""
    mark_invalid = state.set_invalid_move

    def set_invalid_move(reason: Any, reward: Any = -1.0, **more: Any) -> Any:
        if isinstance(reward, str):
            reason, reward = reward, reason
        return mark_invalid(reason, reward, **more)

    if isinstance(mark_invalid, MethodType) and type(state).__name__ == "SinglePlayerState":
        state.set_invalid_move = set_invalid_move


def _import() -> Any:
    try:
        return import_module("textarena")
    except ImportError as error:
        raise MissingDependency(f"Its games need TextArena ({error}): {install_line('textarena')}.") from error
