"""Players of tic-tac-toe by PettingZoo's rules: functions of what a seat is shown."""

from __future__ import annotations

import json
import random
import re
from functools import cache

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def lowest(messages: list[dict[str, str]]) -> str:
    """The first possible move."""
    return possible(messages[-1]["content"])[0]


def random_move(messages: list[dict[str, str]], seed: int) -> str:
    """Any possible move."""
    return random.Random(seed).choice(possible(messages[-1]["content"]))


def nonsense(messages: list[dict[str, str]]) -> str:
    """No move at all."""
    return "Hm."


def possible(seen: str) -> list[str]:
    """The moves that the last observation in a text lists."""
    return re.findall(r"\d+", seen.rpartition("Possible: ")[2].partition("\n")[0].partition("<")[0])


def best(turn: int, prompt: str) -> str:
    """The best move, by looking at all games to their end."""
    board = json.loads(re.findall(r"\[\[\[.*\]\]\]", prompt)[-1])
    cells = [cell for row in board for cell in row]
    own = frozenset(place for place, cell in enumerate(cells) if cell[0])
    other = frozenset(place for place, cell in enumerate(cells) if cell[1])
    return str(max(set(range(9)) - own - other, key=lambda move: -value(other, own | {move})))


@cache
def value(own: frozenset[int], other: frozenset[int]) -> int:
    """What the game is worth to whose turn it is."""
    if any(set(line) <= other for line in LINES):
        return -1
    free = set(range(9)) - own - other
    return max((-value(other, own | {move}) for move in free), default=0)
