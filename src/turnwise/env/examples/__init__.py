"""Small environments to try things with."""

from turnwise.env.examples.guess_number import GuessNumber
from turnwise.env.examples.simple_game import SimpleGameEnvironment

__all__ = ["GuessNumber", "SimpleGameEnvironment"]
