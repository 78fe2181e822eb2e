"""Environments to learn from and to try things with, each of less than 100 lines.

A guessing game, two text games, two desks with tools, and a maze that shows what credit for single turns is worth.
"""

from turnsmith.env.examples.calculator import Calculator
from turnsmith.env.examples.custom_game import CustomGameEnvironment
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.examples.simple_game import SimpleGameEnvironment
from turnsmith.env.examples.support_desk import SupportDesk
from turnsmith.env.examples.two_step_maze import TwoStepMaze

__all__ = [
    "Calculator",
    "CustomGameEnvironment",
    "GuessNumber",
    "SimpleGameEnvironment",
    "SupportDesk",
    "TwoStepMaze",
]
