"""Questions of the kind and size of the usual data sets, in our own words: sums in words, mathematics, choices."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Question:
    """A question with its worked solution and its final answer."""

    text: str
    solution: str
    answer: str


def word_problems(count: int = 24, seed: int = 0) -> list[Question]:
    """Problems of two or three steps with a whole number as the answer, as in grade school books."""
    draw = random.Random(seed)
    return [draw.choice(_STORIES)(draw) for _ in range(count)]


def mathematics() -> list[Question]:
    """Problems of competitions, with answers in LaTeX."""
    return [Question(text, f"{why} The answer is $\\boxed{{{answer}}}$.", answer) for text, why, answer in _MATHEMATICS]


def choices(count: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Questions with four options in a drawn order: `question`, `options` by letter, and the right letter, `answer`."""
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for question, *texts in _CHOICES[:count]:
        shown = draw.sample(texts, len(texts))
        rows.append(
            {
                "question": question,
                "options": dict(zip("ABCD", shown, strict=True)),
                "answer": "ABCD"[shown.index(texts[0])],
            }
        )
    return rows


def _shop(draw: random.Random) -> Question:
    name, thing = draw.choice(("Nora", "Amir", "Lena", "Oskar")), draw.choice(("notebooks", "mugs", "candles"))
    count, price, paid = draw.randint(3, 9), draw.randint(2, 12), 0
    paid = count * price + draw.randint(5, 40)
    return Question(
        f"{name} buys {count} {thing} that cost ${price} each and pays with ${paid}. How many dollars does {name} get "
        "back?",
        f"The {thing} cost {count} * {price} = {count * price} dollars.\nThe change is {paid} - {count * price} = "
        f"{paid - count * price} dollars.",
        str(paid - count * price),
    )


def _orchard(draw: random.Random) -> Question:
    rows, trees, apples = draw.randint(4, 15), draw.randint(6, 20), draw.randint(30, 90)
    return Question(
        f"An orchard has {rows} rows of {trees} trees. Each tree gives {apples} apples in a year. How many apples does "
        "the orchard give in a year?",
        f"There are {rows} * {trees} = {rows * trees} trees.\nThey give {rows * trees} * {apples} = "
        f"{rows * trees * apples} apples.",
        str(rows * trees * apples),
    )


def _journey(draw: random.Random) -> Question:
    fast, slow = draw.randint(5, 9) * 10, draw.randint(2, 4) * 10
    first, second = draw.randint(2, 5), draw.randint(1, 4)
    return Question(
        f"A bus drives for {first} hours at {fast} km per hour and then for {second} hours at {slow} km per hour. How "
        "many kilometres is that altogether?",
        f"First it drives {first} * {fast} = {first * fast} km.\nThen it drives {second} * {slow} = {second * slow} "
        f"km.\nThat is {first * fast} + {second * slow} = {first * fast + second * slow} km.",
        str(first * fast + second * slow),
    )


def _savings(draw: random.Random) -> Question:
    name, weeks = draw.choice(("Ida", "Ben", "Mila", "Jakob")), draw.randint(5, 30)
    saved, spent = draw.randint(8, 25), 0
    spent = draw.randint(10, weeks * saved - 5)
    return Question(
        f"{name} saves ${saved} every week. After {weeks} weeks {name} spends ${spent} on a present. How many dollars "
        f"does {name} have left?",
        f"In {weeks} weeks {name} saves {weeks} * {saved} = {weeks * saved} dollars.\n{weeks * saved} - {spent} = "
        f"{weeks * saved - spent} dollars are left.",
        str(weeks * saved - spent),
    )


_STORIES: tuple[Callable[[random.Random], Question], ...] = (_shop, _orchard, _journey, _savings)
_MATHEMATICS = (
    ("What is the sum of the solutions of $x^2 - 7x + 10 = 0$?", "By Vieta's formulas the sum is $7$.", "7"),
    ("Simplify $\\sqrt{72}$.", "$72 = 36 \\cdot 2$, and $\\sqrt{36} = 6$.", "6\\sqrt{2}"),
    ("A fair coin is tossed three times. How likely are exactly two heads?", "3 of 8 cases.", "\\frac{3}{8}"),
    ("Find $x$ if $3(x - 4) = 2x + 5$.", "$3x - 12 = 2x + 5$, so $x = 17$.", "17"),
    ("What is the area of a triangle with sides $5$, $12$ and $13$?", "It has a right angle: $5 \\cdot 12 / 2$.", "30"),
    ("Compute $\\frac{2}{3} + \\frac{3}{4}$.", "$\\frac{8}{12} + \\frac{9}{12}$.", "\\frac{17}{12}"),
    ("How many positive divisors has $360$?", "$360 = 2^3 \\cdot 3^2 \\cdot 5$, so $4 \\cdot 3 \\cdot 2$.", "24"),
    ("What is the remainder of $7^{10}$ divided by $5$?", "$7^2 \\equiv -1$, so $7^{10} \\equiv -1$.", "4"),
    ("Factor $x^2 - 9$.", "It is a difference of squares.", "(x-3)(x+3)"),
    ("Find the distance between $(1, 2)$ and $(4, 6)$.", "$\\sqrt{3^2 + 4^2}$.", "5"),
    ("Solve $|x - 2| < 3$. Give an interval.", "$-3 < x - 2 < 3$.", "(-1,5)"),
    ("What is $\\log_2 32$?", "$2^5 = 32$.", "5"),
    ("What is the least common multiple of $12$ and $18$?", "$2^2 \\cdot 3^2$.", "36"),
    ("Expand $(x + 2)^2$.", "By the binomial theorem.", "x^2+4x+4"),
    ("What is $\\sin 60^\\circ$?", "Half of an equilateral triangle shows it.", "\\frac{\\sqrt{3}}{2}"),
    ("Write $0.\\overline{27}$ as a fraction.", "$\\frac{27}{99}$.", "\\frac{3}{11}"),
    ("In how many ways can $5$ books stand on a shelf?", "$5!$.", "120"),
    ("What is the $10$th term of $3, 7, 11, \\dots$?", "$3 + 9 \\cdot 4$.", "39"),
    ("Find the area of a circle of radius $4$.", "$\\pi \\cdot 4^2$.", "16\\pi"),
    ("If $f(x) = 2x^2 - 1$, what is $f(-3)$?", "$2 \\cdot 9 - 1$.", "17"),
    ("Rationalise $\\frac{1}{\\sqrt{5}}$.", "Multiply by $\\frac{\\sqrt{5}}{\\sqrt{5}}$.", "\\frac{\\sqrt{5}}{5}"),
    ("What is the slope of the line $2x + 4y = 8$?", "$y = 2 - \\frac{1}{2}x$.", "-\\frac{1}{2}"),
    ("How many diagonals has a convex octagon?", "$8 \\cdot 5 / 2$.", "20"),
    ("What is $15\\%$ of $240$?", "$0.15 \\cdot 240$.", "36"),
)
"""The problem, why, and the answer."""
_CHOICES = (
    ("Which gas do green plants take up for photosynthesis?", "Carbon dioxide", "Oxygen", "Nitrogen", "Helium"),
    ("Which planet is the largest of the solar system?", "Jupiter", "Saturn", "Neptune", "Mars"),
    ("Which organ of the body makes insulin?", "The pancreas", "The liver", "The spleen", "The kidney"),
    ("What does a barometer measure?", "Air pressure", "Humidity", "Wind speed", "Temperature"),
    ("Which metal is liquid at room temperature?", "Mercury", "Lead", "Zinc", "Tin"),
    ("What is the unit of electrical resistance?", "The ohm", "The volt", "The watt", "The farad"),
    ("Which of these is a prime number?", "97", "91", "87", "93"),
    ("On which continent is the river Amazon?", "South America", "Africa", "Asia", "Europe"),
    ("Which blood cells carry oxygen?", "Red blood cells", "White blood cells", "Platelets", "Plasma cells"),
    ("Who wrote the play Hamlet?", "William Shakespeare", "Ben Jonson", "John Milton", "Oscar Wilde"),
    ("What is the chemical symbol of sodium?", "Na", "So", "Sd", "S"),
    ("Which layer of the atmosphere has most of the ozone?", "The stratosphere", "The troposphere", "The mesosphere",
     "The exosphere"),
    ("What is the derivative of x squared?", "2x", "x", "2", "x squared over 2"),
    ("Which of these animals is a mammal?", "A dolphin", "A trout", "A penguin", "A newt"),
    ("In which year did the First World War begin?", "1914", "1918", "1905", "1939"),
    ("Which data structure is first in, first out?", "A queue", "A stack", "A heap", "A tree"),
    ("What is the freezing point of water in kelvin?", "273.15", "0", "100", "373.15"),
    ("Which instrument has keys, hammers and strings?", "The piano", "The organ", "The harp", "The flute"),
    ("Which country has the city of Kyoto?", "Japan", "China", "Korea", "Vietnam"),
    ("What is the sum of the angles of a triangle?", "180 degrees", "90 degrees", "270 degrees", "360 degrees"),
    ("Which vitamin does skin make in sunlight?", "Vitamin D", "Vitamin A", "Vitamin C", "Vitamin K"),
    ("Which particle has no electric charge?", "The neutron", "The proton", "The electron", "The positron"),
    ("What does a thermometer measure?", "Temperature", "Pressure", "Mass", "Length"),
    ("Which rock is made by cooling lava?", "Basalt", "Limestone", "Marble", "Sandstone"),
)  # fmt: skip
"""The question, the right option and three others."""
