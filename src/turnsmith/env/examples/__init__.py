"""Small environments to read and to experiment with, each under 100 lines.

A guessing game, two text games, two tasks with tools, and a maze that shows why credit assignment by turn matters.
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
