"""Environments to learn from and to try things with, each of less than 100 lines.

A guessing game, two text games, two desks with tools, and a maze that shows what credit for single turns is worth.
"""

from turnwise.env.examples.calculator import Calculator
from turnwise.env.examples.custom_game import CustomGameEnvironment
from turnwise.env.examples.guess_number import GuessNumber
from turnwise.env.examples.simple_game import SimpleGameEnvironment
from turnwise.env.examples.support_desk import SupportDesk
from turnwise.env.examples.two_step_maze import TwoStepMaze

__all__ = [
    "Calculator",
    "CustomGameEnvironment",
    "GuessNumber",
    "SimpleGameEnvironment",
    "SupportDesk",
    "TwoStepMaze",
]
