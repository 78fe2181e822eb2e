"""Answers that a model could write to make a scoring function slow: long, nested, repeated, numbers, Unicode."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

WORDS = (
    *(
        "<answer>",
        "</answer>",
        "<ANSWER",
        "\\boxed{",
        "}",
        "{",
        "answer",
        "answer is",
        "final ",
        "####",
        "```\n",
        "```",
    ),
    *(
        " ",
        "\n",
        "\t",
        "1",
        "1,",
        "111,",
        ".",
        "-",
        "/",
        "1/",
        "e",
        "e-",
        "9",
        "*",
        "(",
        "[",
        "]",
        '"',
        "a",
        "a ",
        "\\",
    ),
    *("\u2212", "\u00b2", "\u0665", "\uff15", "\u0130", "\u017f", "\ud800", "\0", "\x1c", "e\u0301", "\U0001f600"),
    *('{"a": ', '{"a": NaN}', "1e999", "Infinity", "null,", "//", "1 /", "x1", "a1 ", "ab!", "a!", ",,"),
)


def worst(length: int) -> Iterator[str]:
    """Each word repeated, alone and between a digit and a letter, which make a pattern look as far as it can."""
    for word in WORDS:
        repeated = word * (length // len(word))
        yield from (repeated, f"1{repeated}x", f"answer{repeated}!", f"{repeated}\\boxed{{{repeated}")


def drawn(numbers: random.Random) -> str:
    """One answer at random, mostly short; one of fifty has up to 100,000 characters, the most that is judged."""
    length = int(10 ** (numbers.uniform(0, 3.7) if numbers.random() < 0.98 else numbers.uniform(3.7, 5)))
    kind = numbers.randrange(5)
    if kind == 0:
        return (numbers.choice(WORDS) * length)[:length]
    if kind == 1:
        return "".join(numbers.choices(WORDS, k=max(1, length // 3)))
    if kind == 2:
        opening, closing = numbers.choice(("[]", "{}", "()", ('{"a":', "}")))
        return opening * length + "1" + closing * (length - numbers.randrange(2))
    if kind == 3:
        return "a" * min(length, 60) + numbers.choice("! .") + "".join(numbers.choices(string.printable, k=9))
    digits = "".join(numbers.choices("0123456789", k=length))
    return numbers.choice(
        ("{0}", "-{0}", "1.{0}", "1/{0}", "{0}e{0}", '{{"a": {0}}}', "0x{0}", "\\frac{{1}}{{{0}}}")
    ).format(digits)
