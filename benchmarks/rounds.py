"""How two things are compared: in rounds of alternating order, by the median of the rounds' ratios."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import TypeVar

LEAST = 3
"""Rounds below which a ratio is not recorded: single ones vary by a factor of two."""
T = TypeVar("T")


def in_turn(names: Sequence[T], rounds: int) -> Iterator[T]:
    """All names in each round, backwards in every second one: whoever comes first finds cold caches.

    Example:
        >>> list(in_turn("ab", 3))
        ['a', 'b', 'b', 'a', 'a', 'b']
    """
    for number in range(rounds):
        yield from names if number % 2 == 0 else reversed(names)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of the rounds.

    Example:
        >>> median_ratio([1.0, 4.0, 3.0], [2.0, 2.0, 2.0])
        1.5
    """
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def check_rounds(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse to record fewer rounds than `LEAST`."""
    if options.json and options.rounds < LEAST:
        parser.error(f"--json needs at least {LEAST} rounds")
