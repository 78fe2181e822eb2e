"""LeonGuertler/TextArena: games for two, with a simple opponent in the other seat."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment
from turnsmith.env.adapters.textarena import TextArenaEnvironment


def moves_of_black(board: list[list[str]]) -> Iterator[tuple[int, int, int, int]]:
    """Steps and jumps that the rules in the game's prompt allow."""
    for row, column in ((row, column) for row in range(8) for column in range(8) if board[row][column] in "bB"):
        for down in (1, -1) if board[row][column] == "B" else (1,):
            for right in (-1, 1):
                for far in (1, 2):
                    to_row, to_column = row + far * down, column + far * right
                    if not (0 <= to_row < 8 and 0 <= to_column < 8) or board[to_row][to_column] != ".":
                        continue
                    if far == 1 or board[row + down][column + right] in "rR":
                        yield row, column, to_row, to_column


def black(seen: str) -> str:
    """One of the moves on the last board that was shown."""
    rows = re.findall(r"^ \d \|(.*)$", seen, re.MULTILINE)[-8:]
    moves = list(moves_of_black([row.split() for row in rows]))
    return "[{} {} {} {}]".format(*random.Random(seen).choice(moves)) if moves else "I have no move."


def mark_two(seen: str) -> str:
    """A mark in two of the cells that are not taken for good."""
    taken = {3 * int(row) + int(column) for row, column in re.findall(r"Cell \((\d), (\d)\) is now", seen)}
    free = [cell for cell in range(9) if cell not in taken]
    return "[{},{}]".format(*random.Random(seen).sample(free, 2)) if len(free) > 1 else "I have no move."


checkers = partial(TextArenaEnvironment, "Checkers-v0", opponent=black)
quantum_tic_tac_toe = partial(TextArenaEnvironment, "QuantumTicTacToe-v0", opponent=mark_two)


class Mastermind(BaseEnvironment):
    """A game as `textarena.make` made it in 2025: the model begins, and the other player guesses at random."""

    def reset(self, seed: int = 0) -> str:
        import textarena

        self.game = textarena.make("Mastermind-v0")
        self.game.reset(seed=seed)
        self.other = random.Random(seed)
        return self._shown()

    def step(self, action: str) -> Any:
        done, info = self.game.step(action)
        while not done and self.game.state.current_player_id == 1:
            self.game.get_observation()
            guess = self.other.sample(range(1, 7), 4)
            done, info = self.game.step("[{} {} {} {}]".format(*guess))
        if done:
            return str(info.get("reason", "")), self.game.close()[0], True, info
        return self._shown(), 0.0, False, info

    def solve(self) -> str:
        return "[{} {} {} {}]".format(*self.game.secret_codes[1])

    def _shown(self) -> str:
        _, messages = self.game.get_observation()
        return "\n".join(text if sender < 0 else f"Player {sender}: {text}" for sender, text in messages if sender != 0)


def _blocked_player_plays_on() -> bool:
    from textarena.envs.Checkers.env import CheckersEnv

    game = CheckersEnv()
    game.reset(num_players=2, seed=1)
    board = [["."] * 8 for _ in range(8)]
    board[5][0], board[6][1], board[7][2], board[4][5] = "b", "r", "r", "r"
    game.state.game_state["board"] = board
    done, _ = game.step("[4 5 3 4]")
    return not done


def _full_board_plays_on() -> bool:
    from textarena.envs.QuantumTicTacToe.env import QuantumTicTacToeEnv

    game = QuantumTicTacToeEnv()
    game.reset(num_players=2, seed=1)
    done = False
    for pair in ("[0,1]", "[2,4]", "[3,5]", "[7,6]"):
        for _ in range(2):
            done, _ = game.step(pair)
    return not done


def _digit_counts_twice() -> bool:
    from textarena.envs.two_player.Mastermind.env import MastermindEnv

    game = MastermindEnv()
    game.reset(seed=1)
    game.secret_codes[1] = [1, 2, 3, 4]
    return sum(game._evaluate_guess(0, [4, 5, 6, 4])) > 1


_HERE = "published_subjects.textarena_blind"
SUBJECTS = {
    "textarena-checkers": Subject(
        (f"{_HERE}:checkers", "inference.max_turns=60", "inference.max_episode_tokens=32768"), _blocked_player_plays_on
    ),
    "textarena-quantum-tictactoe": Subject((f"{_HERE}:quantum_tic_tac_toe",), _full_board_plays_on),
    "textarena-mastermind-pegs": Subject((f"{_HERE}:Mastermind",), _digit_counts_twice),
}
