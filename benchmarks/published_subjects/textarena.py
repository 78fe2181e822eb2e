"""LeonGuertler/TextArena: games for two, with a simple opponent in the other seat."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment
from turnsmith.env.adapters.textarena import TextArenaEnvironment

_WORDS = (
    "apple", "bottle", "bridge", "bucket", "butter", "camera", "carriage", "circle", "cloud", "copper", "engine",
    "feather", "finger", "flower", "garden", "hammer", "island", "jewel", "kettle", "library", "market", "mountain",
    "needle", "office", "orange", "pencil", "potato", "river", "sponge", "station", "thunder", "ticket", "umbrella",
    "window",
)  # fmt: skip
"""Nouns, in place of the word list that the game downloads."""
_ANSWERS = (
    "Tell me more about the {}.",
    "I never had a {} of my own.",
    "A {}, really?",
    "Why do you think of a {} now?",
    "My uncle sold his {} last year.",
    "What would you do with a {}?",
)


def ask_back(said: str) -> str:
    """Takes up the longest word of what was said last."""
    words = re.findall(r"[a-z]+", said.lower())
    return random.Random(said).choice(_ANSWERS).format(max(words, key=len, default="day"))


def last_free(seen: str) -> str:
    """A flat stone on the last free square of Tak's board."""
    rows = re.findall(r"^ +(\d) \|(.*)\|$", seen, re.MULTILINE)[-4:]
    free = [
        (row, column)
        for row, cells in enumerate(cells.split("|") for _, cells in rows)
        for column, cell in enumerate(cells)
        if not cell.strip()
    ]
    return "[place () {{({},{}): [F1]}}]".format(*free[-1])


def any_legal(seen: str) -> str:
    """A free square of the small board that Ultimate Tic Tac Toe wants, or of any."""
    free = re.findall(r"\[(\d),(\d)\]", seen.rpartition("Current board:")[2])
    wanted = re.findall(r"Player 1 must now play in micro board (\d)\.", seen.rpartition("Player 0 played")[2])
    legal = [cell for cell in free if not wanted or cell[0] == wanted[-1]]
    return "[{} {}]".format(*random.Random(seen).choice(legal)) if legal else "I have no move."


class Tak(TextArenaEnvironment):
    """Tak on four by four squares; who plays first can lay a road along the first row."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__("Tak-v0", config, opponent=last_free)

    def solve(self) -> str:
        column = next(column for column, stack in enumerate(self.game.board[0]) if not stack)
        return f"[place () {{(0,{column}): [F0]}}]"


ultimate_tic_tac_toe = partial(TextArenaEnvironment, "UltimateTicTacToe-v0", opponent=any_legal)


class DontSayIt(BaseEnvironment):
    """The game as it was in 2025: the model begins, and the other player takes up its words."""

    reward_range = (-1.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.game = _dont_say_it()
        self.game.reset(seed=seed)
        return self._shown()

    def step(self, action: str) -> Any:
        done, info = self.game.step(action)
        if not done:
            done, info = self.game.step(ask_back(action))
        if done:
            return str(info.get("reason", "")), self.game.close()[0], True, info
        return self._shown(), 0.0, False, info

    def solve(self) -> str:
        return f"Is it a {self.game.state.game_state['target_words'][0]}?"

    def _shown(self) -> str:
        _, messages = self.game.get_observation()
        self.game.state.observations[0] = []
        return "\n".join(text if sender < 0 else f"Player {sender}: {text}" for sender, text in messages if sender != 0)


def _dont_say_it() -> Any:
    from textarena.envs.two_player.DontSayIt.env import DontSayItEnv

    class Game(DontSayItEnv):
        def _load_word_list(self, hardcore: bool = False) -> None:
            self.word_list = list(_WORDS)

    return Game(max_turns=20)


def _a_word_before_a_comma_is_not_noticed() -> bool:
    game = _dont_say_it()
    game.reset(seed=1)
    done, _ = game.step(f"I have a {game.state.game_state['target_words'][1]}, too.")
    return not done


def _the_winning_move_raises() -> bool:
    from textarena.envs.Tak.env import TakEnv

    game = TakEnv(board_size=4, stones=15, capstones=1)
    game.reset(num_players=2, seed=1)
    for column in range(3):
        game.step(f"[place () {{(0,{column}): [F0]}}]")
        game.step(f"[place () {{(3,{column}): [F1]}}]")
    try:
        return not game.step("[place () {(0,3): [F0]}]")[0]
    except TypeError:
        return True


def _a_full_board_plays_on() -> bool:
    from textarena.envs.UltimateTicTacToe.env import UltimateTicTacToeEnv

    game = UltimateTicTacToeEnv()
    game.reset(num_players=2, seed=1)
    drawn = [list("XOX"), list("XOO"), list("OXX")]
    board = [[row.copy() for row in drawn] for _ in range(9)]
    board[8][2][2] = " "
    game.state.game_state |= {"board": board, "next_micro_board": 8}
    done, _ = game.step("[8 8]")
    return not done


_HERE = "published_subjects.textarena"
_LONG = ("inference.max_turns=60", "inference.max_episode_tokens=65536")
SUBJECTS = {
    "textarena-dont-say-it": Subject((f"{_HERE}:DontSayIt",), _a_word_before_a_comma_is_not_noticed),
    "textarena-tak-winner": Subject((f"{_HERE}:Tak", *_LONG), _the_winning_move_raises),
    "textarena-ultimate-tictactoe": Subject((f"{_HERE}:ultimate_tic_tac_toe", *_LONG), _a_full_board_plays_on),
}
