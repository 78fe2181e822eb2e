"""Scoring functions for the usual kinds of answers: 1.0 if the model's answer is right, else 0.0.

Each reads the final answer in a response, which is what stands in the last `<answer>...</answer>` or `\\boxed{...}`, or
after the last `####` or `Answer:`, or else the whole response. None pays for an answer somewhere in a longer text:
models learn to list all of them.

Whatever a model writes, judging it takes linear time here or happens in a process that can be killed, and a failure to
judge it is a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from turnsmith.env.adapters.code_tests.grader import check_tests, code_answer
from turnsmith.env.adapters.final_answers import MOST_CHARACTERS, code_in, final_answer
from turnsmith.env.adapters.json_schemas import schema_text
from turnsmith.env.adapters.scoring_process import judge_elsewhere, tell_once
from turnsmith.errors import ConfigError, EnvironmentFailure, MissingDependency
from turnsmith.importing import install_line

_NUMBER = re.compile(
    r"(?=[-+\u2212]?\.?\d)[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|\.(?!\w))?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?"
)
_UNIT = re.compile(r"\s*([%°]|[a-zA-Zµ°Ωμ][\w/²³^]*)?")
_CHOICE = re.compile(r"[\s(\[*]*([A-Za-z])[\s)\].:*]*")
_MOST_DIGITS = 400
"""1e999999999 would take all memory as a fraction; floats end at 1e308."""
_MOST_LENGTH = 2000
"""Characters of a number, and of mathematics."""
TOLERANCE = Fraction(1, 10**6)
"""How far a number may be off, as a share of the right one."""


def exact_answer(response: str, answer: Any) -> float:
    """Pay for the same text, however it is spaced.

    Example:
        >>> exact_answer("Answer: New  York", "New York"), exact_answer("York", "New York")
        (1.0, 0.0)
    """
    return _judge(lambda said: said.split() == final_answer(str(answer)).split(), response)


def number_answer(response: str, answer: Any) -> float:
    """Pay for the same number, with the same unit if both name one.

    Understands `1,234.5`, `3/4`, `1e-3`, `50 %` and `$5`. Of several numbers in the final answer the last one counts.

    Example:
        >>> number_answer("She has 1,024 apples.", "... #### 1024"), number_answer("5 km", "5 m"), number_answer("x", 5)
        (1.0, 0.0, 0.0)
    """
    right = _right_number(answer)

    def is_right(said: str) -> bool:
        number = _last_number(said)
        if number is None or (number[1] and right[1] and number[1] != right[1]):
            return False
        return abs(number[0] - right[0]) <= TOLERANCE * abs(right[0])

    return _judge(is_right, response)


def _right_number(answer: Any) -> tuple[Fraction, str]:
    right = _last_number(final_answer(str(answer)))
    if right is None:
        raise EnvironmentFailure(f"The answer {str(answer)[:80]!r} has no number to compare with.")
    return right


def _last_number(text: str) -> tuple[Fraction, str] | None:
    """The last number in a text, and its unit."""
    for found in reversed(list(_NUMBER.finditer(text))):
        before = text[found.start() - 1 : found.start()]
        if before.isalnum() or (before and before in "_/"):  # x2, H2O
            continue
        value = _value(found.group())
        if value is not None:
            unit = _UNIT.match(text, found.end())
            return value, (unit.group(1) or "").lower() if unit else ""
    return None


def _value(written: str) -> Fraction | None:
    if len(written) > _MOST_LENGTH:
        return None
    number, _, divisor = written.replace(",", "").replace("\N{MINUS SIGN}", "-").partition("/")
    try:
        decimal = Decimal(number.strip().rstrip("."))
        return Fraction(decimal) / int(divisor or 1) if abs(decimal.adjusted()) < _MOST_DIGITS else None
    except (InvalidOperation, ZeroDivisionError, ValueError):
        return None


def choice_answer(response: str, answer: Any) -> float:
    """Pay for the right letter of a multiple choice: `B`, `(b)`, `The answer is B.`

    Example:
        >>> choice_answer("Answer: (b)", "B"), choice_answer("A or B", "B"), choice_answer("A dog.", "A")
        (1.0, 0.0, 0.0)
    """
    right = _right_choice(answer)
    return _judge(lambda said: _choice(said) == right, response)


def _right_choice(answer: Any) -> str:
    right = _choice(final_answer(str(answer)))
    if not right:
        raise EnvironmentFailure(f"The answer {str(answer)[:80]!r} is not one letter.")
    return right


def _choice(said: str) -> str:
    choice = _CHOICE.fullmatch(said)
    return choice.group(1).upper() if choice else ""


async def regex_answer(response: str, answer: Any) -> float:
    """Pay if the whole final answer matches a regular expression.

    Example:
        >>> import asyncio
        >>> asyncio.run(regex_answer("Answer: 2026-11-16", r"\\d{4}-\\d\\d-\\d\\d"))
        1.0
        >>> asyncio.run(regex_answer("on 2026-11-16", r"\\d{4}-\\d\\d-\\d\\d"))
        0.0
    """
    return await _in_process("regex", _right_pattern(answer), final_answer(response))


@lru_cache(maxsize=1024)
def _pattern_problem(pattern: str) -> str:
    try:
        re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        return f"The answer {pattern[:80]!r} is not a regular expression: {error}."
    return ""


def _right_pattern(answer: Any) -> str:
    problem = _pattern_problem(str(answer))
    if problem:
        raise EnvironmentFailure(problem)
    return str(answer)


async def json_answer(response: str, answer: Any) -> float:
    """Pay for JSON that fulfils a JSON schema; it may stand in a code block.

    Example:
        >>> import asyncio
        >>> schema = {"type": "object", "required": ["name"]}
        >>> [asyncio.run(json_answer(said, schema)) for said in ('{"name": "Ada"}', "[]", "Ada")]
        [1.0, 0.0, 0.0]
    """
    return await _in_process("json_schema", schema_text(answer), code_in(response))


async def math_answer(response: str, answer: Any) -> float:
    """Pay for an answer with the same value as the right one, as `\\frac{1}{2}` has that of 0.5; by math-verify."""
    right, said = _right_mathematics(answer), final_answer(response)
    return await _in_process("math", right, said) if len(said) <= _MOST_LENGTH else 0.0


def _right_mathematics(answer: Any) -> str:
    if find_spec("math_verify") is None:
        raise MissingDependency(f"The reward `math` needs math-verify: {install_line('math')}.")
    return final_answer(str(answer))


def _judge(is_right: Callable[[str], bool], response: str) -> float:
    """1.0 if the final answer is right, else 0.0. An answer that is too long or has no value is wrong."""
    try:
        said = final_answer(response)
        return float(len(said) <= MOST_CHARACTERS and is_right(said))
    except (ArithmeticError, ValueError, RecursionError) as error:  # any other error is our bug, and not worth 0
        tell_once(type(error).__name__, "An answer could not be judged, and was worth 0: %r.", error)
        return 0.0


async def _in_process(kind: str, right: str, said: str) -> float:
    if len(said) > MOST_CHARACTERS:
        return 0.0
    verdict = await judge_elsewhere(kind, right, said)
    if verdict == "unreadable":
        raise EnvironmentFailure(f"The answer {right[:80]!r} is not mathematics that math-verify can read.")
    return float(verdict == "1")


Shipped = Callable[[str, Any], float | Awaitable[float]]
SHIPPED: dict[str, tuple[Shipped, Callable[[Any], object]]] = {
    "exact": (exact_answer, str),
    "number": (number_answer, _right_number),
    "math": (math_answer, _right_mathematics),
    "choice": (choice_answer, _right_choice),
    "regex": (regex_answer, _right_pattern),
    "json_schema": (json_answer, schema_text),
    "tests": (code_answer, check_tests),
}
"""By the names of `--reward`: the function, and a check that raises for an unusable answer column."""


def shipped_scorer(name: str) -> tuple[Shipped, Callable[[Any], object]]:
    """The scoring function of this name, and the check of its answer column.

    Example:
        >>> shipped_scorer("number")[0]("42", 42)
        1.0
    """
    if name not in SHIPPED:
        known = ", ".join(SHIPPED)
        raise ConfigError(f"There is no reward called {name!r}: use {known}, or module:function for one of your own.")
    return SHIPPED[name]
