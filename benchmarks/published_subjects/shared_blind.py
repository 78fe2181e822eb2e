"""What subjects share: questions with worked solutions, and calls in the main thread of a process."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """A question of school mathematics."""

    question: str
    worked: str
    """The solution in several lines, without a last line that repeats the answer."""
    answer: str


QUIZ = (
    (
        "A ball is dropped from rest and falls for two seconds. How fast is it, if g is 10 m/s^2?",
        ("20 m/s", "10 m/s", "40 m/s", "5 m/s"),
    ),
    ("Which particle carries the electromagnetic force?", ("photon", "gluon", "neutrino", "muon")),
    ("What is the pH of pure water at 25 degrees Celsius?", ("7", "0", "1", "14")),
    (
        "Which organelle makes most of the ATP of an animal cell?",
        ("mitochondrion", "ribosome", "Golgi apparatus", "lysosome"),
    ),
    ("Which base pairs with adenine in DNA?", ("thymine", "guanine", "cytosine", "uracil")),
    ("What is the oxidation state of manganese in the permanganate ion?", ("+7", "+2", "+4", "+6")),
    (
        "Which law says that the entropy of an isolated system does not fall?",
        ("the second law of thermodynamics", "the first law of thermodynamics", "Hooke's law", "Ohm's law"),
    ),
    ("How many electrons fit into a d subshell?", ("10", "2", "6", "14")),
    (
        "Which bond joins the amino acids of a protein?",
        ("peptide bond", "glycosidic bond", "ester bond", "hydrogen bond"),
    ),
    (
        "A light wave has a frequency of 5e14 Hz. What is its wavelength in vacuum?",
        ("600 nm", "300 nm", "150 nm", "1200 nm"),
    ),
    ("Which blood cells carry oxygen?", ("erythrocytes", "platelets", "lymphocytes", "neutrophils")),
    ("What is the resistance of two resistors of 6 ohm in parallel?", ("3 ohm", "6 ohm", "12 ohm", "1 ohm")),
    ("Which hormone lowers the sugar in the blood?", ("insulin", "glucagon", "cortisol", "adrenaline")),
    (
        "How does the electric field of a point charge fall with the distance r?",
        ("as 1/r^2", "as 1/r", "as 1/r^3", "it is constant"),
    ),
    ("Which geometry has the molecule of methane?", ("tetrahedral", "planar", "linear", "octahedral")),
    (
        "What kind of inheritance has haemophilia A?",
        ("X-linked recessive", "autosomal dominant", "autosomal recessive", "mitochondrial"),
    ),
    (
        "Which of these reagents reduces a ketone to an alcohol?",
        ("sodium borohydride", "chromic acid", "ozone", "osmium tetroxide"),
    ),
    (
        "Which quantity is conserved in an elastic collision but not in an inelastic one?",
        ("kinetic energy", "momentum", "mass", "charge"),
    ),
    ("Which enzyme unwinds DNA during its replication?", ("helicase", "ligase", "primase", "polymerase")),
    ("How many neutrons has a nucleus of carbon-14?", ("8", "6", "7", "14")),
)
"""Questions of science, with the right choice first."""


def _walk(draw: random.Random) -> Problem:
    speed, hours, rest = draw.randint(3, 6), draw.randint(2, 5), draw.choice((6, 8, 9, 12))
    total = speed * hours + rest
    return Problem(
        f"A hiker walks at a steady {speed} kilometres per hour for {hours} hours, rests, and then walks {rest} more "
        "kilometres to the hut. How many kilometres does the hiker walk that day?",
        f"In the first part the hiker covers ${speed} \\cdot {hours} = {speed * hours}$ kilometres.\n"
        f"After the rest another ${rest}$ kilometres follow.\nTogether that is ${speed * hours} + {rest} = {total}$.",
        str(total),
    )


def _line(draw: random.Random) -> Problem:
    slope, root, shift = draw.randint(2, 9), draw.randint(-8, 12), draw.randint(1, 30)
    right = slope * root + shift
    return Problem(
        f"Solve the equation ${slope}x + {shift} = {right}$ for $x$.",
        f"Subtract ${shift}$ from both sides:\n$${slope}x = {right - shift}.$$\n"
        f"Divide by ${slope}$ to get $x = {root}$.",
        str(root),
    )


def _share(draw: random.Random) -> Problem:
    bottom = draw.choice((5, 7, 9, 11))
    first = draw.randint(1, bottom - 3)
    second = draw.randint(1, bottom - first - 1)
    return Problem(
        f"Mira eats $\\frac{{{first}}}{{{bottom}}}$ of a cake and Jon eats $\\frac{{{second}}}{{{bottom}}}$ of it. "
        "What part of the cake is left?",
        f"Together they eat $\\frac{{{first}}}{{{bottom}}} + \\frac{{{second}}}{{{bottom}}} = "
        f"\\frac{{{first + second}}}{{{bottom}}}$ of the cake.\nWhat is left is $1 - "
        f"\\frac{{{first + second}}}{{{bottom}}} = \\frac{{{bottom - first - second}}}{{{bottom}}}$.",
        f"\\frac{{{bottom - first - second}}}{{{bottom}}}",
    )


def _shop(draw: random.Random) -> Problem:
    pens, price, books, cost = draw.randint(3, 9), draw.randint(2, 4), draw.randint(2, 6), draw.randint(7, 15)
    paid = -(-(pens * price + books * cost) // 50) * 50
    left = paid - pens * price - books * cost
    return Problem(
        f"Pens cost {price} dollars and books cost {cost} dollars. Tom buys {pens} pens and {books} books and pays "
        f"with {paid} dollars. How many dollars does he get back?",
        f"The pens cost ${pens} \\cdot {price} = {pens * price}$ dollars and the books ${books} \\cdot {cost} = "
        f"{books * cost}$ dollars.\nThe total is ${pens * price + books * cost}$ dollars.\n"
        f"He gets back ${paid} - {pens * price + books * cost} = {left}$ dollars.",
        str(left),
    )


def _angle(draw: random.Random) -> Problem:
    first, second = draw.randint(25, 80), draw.randint(25, 80)
    return Problem(
        f"Two angles of a triangle measure ${first}^\\circ$ and ${second}^\\circ$. How many degrees does the third "
        "angle measure?",
        f"The angles of a triangle add up to $180^\\circ$.\nThe third one is $180 - {first} - {second} = "
        f"{180 - first - second}$ degrees.",
        str(180 - first - second),
    )


def _hens(draw: random.Random) -> Problem:
    hens, cows = draw.randint(6, 30), draw.randint(4, 25)
    return Problem(
        f"On a farm there are hens and cows, {hens + cows} animals with {2 * hens + 4 * cows} legs in all. How many "
        "hens are there?",
        f"If all {hens + cows} animals were hens, there would be ${2 * (hens + cows)}$ legs.\n"
        f"The {2 * cows} legs that are missing belong to ${2 * cows} / 2 = {cows}$ cows.\n"
        f"So there are ${hens + cows} - {cows} = {hens}$ hens.",
        str(hens),
    )


def _root(draw: random.Random) -> Problem:
    factor, under = draw.randint(2, 7), draw.choice((2, 3, 5, 6, 7))
    return Problem(
        f"Simplify $\\sqrt{{{factor * factor * under}}}$.",
        f"The largest square that divides ${factor * factor * under}$ is ${factor}^2 = {factor * factor}$.\n"
        f"Hence $\\sqrt{{{factor * factor * under}}} = \\sqrt{{{factor * factor}}} \\cdot \\sqrt{{{under}}} = "
        f"{factor}\\sqrt{{{under}}}$.",
        f"{factor}\\sqrt{{{under}}}",
    )


KINDS: tuple[Callable[[random.Random], Problem], ...] = (_walk, _line, _share, _shop, _angle, _hens, _root)


def problems(count: int = 20, seed: int = 1) -> list[Problem]:
    """Questions of all kinds in turn, with other numbers each time."""
    draw = random.Random(seed)
    return [KINDS[number % len(KINDS)](draw) for number in range(count)]


def in_main_thread(function: Callable[[], Any]) -> Any:
    """The result of a call in the main thread of a process of its own, as trainers call rewards that set alarms."""
    forking = multiprocessing.get_context("fork")
    receiving, sending = forking.Pipe(duplex=False)

    def call() -> None:
        try:
            sending.send((True, function()))
        except Exception as error:
            sending.send((False, f"{type(error).__name__}: {error}"))

    process = forking.Process(target=call)
    process.start()
    sending.close()
    is_fine, result = receiving.recv()
    process.join()
    receiving.close()
    if not is_fine:
        raise RuntimeError(result)
    return result


def call_in(action: str) -> dict[str, Any] | None:
    """A call of a tool, which comes as JSON."""
    try:
        call = json.loads(action)
    except ValueError:
        return None
    return call if isinstance(call, dict) and call.keys() == {"name", "arguments"} else None
