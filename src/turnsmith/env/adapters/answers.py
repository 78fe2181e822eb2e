"""Scoring functions for the usual kinds of answers: what the model said against what is right, 1.0 or 0.0.

Each reads the final answer in a response, which is what stands in the last `<answer>...</answer>` or `\\boxed{...}`, or
after the last `####` or `Answer:`, or else the whole response. None pays for an answer somewhere in a longer text:
models learn to list all of them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from turnsmith.env.adapters.mathematics import is_equal
from turnsmith.errors import ConfigError, EnvironmentFailure, MissingDependency

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_MARK = re.compile(r"####|(?:\bfinal\s+)?\banswer\s*(?:is\s*:|is\b|:)", re.IGNORECASE)
_BOXED = "\\boxed{"
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|\.(?!\w))?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?")
_UNIT = re.compile(r"\s*([%°]|[a-zA-Zµ°Ωμ][\w/²³^]*)?")
_CHOICE = re.compile(r"[\s(\[*]*([A-Za-z])[\s)\].:*]*")
_MOST_DIGITS = 400
"""1e999999999 would take all memory as a fraction; floats end at 1e308."""
TOLERANCE = Fraction(1, 10**6)
"""How far a number may be off, as a share of the right one."""


def final_answer(response: str) -> str:
    """The final answer in a response, without white space around it.

    Example:
        >>> final_answer("2 + 2 is 4.\\n#### 4"), final_answer(r"So \\boxed{\\frac{1}{2}}."), final_answer(" yes ")
        ('4', '\\\\frac{1}{2}', 'yes')
    """
    tagged = _TAG.findall(response)
    if tagged:
        return tagged[-1].strip()
    boxed = _last_boxed(response)
    if boxed is not None:
        return boxed.strip()
    marks = list(_MARK.finditer(response))
    return (response[marks[-1].end() :] if marks else response).strip()


def _last_boxed(response: str) -> str | None:
    start = response.rfind(_BOXED)
    if start < 0:
        return None
    depth = 0
    for place in range(start + len(_BOXED) - 1, len(response)):
        depth += {"{": 1, "}": -1}.get(response[place], 0)
        if not depth:
            return response[start + len(_BOXED) : place]
    return None  # it was cut off


def exact_answer(response: str, answer: Any) -> float:
    """Pay for the same text, however it is spaced.

    Example:
        >>> exact_answer("Answer: New  York", "New York"), exact_answer("York", "New York")
        (1.0, 0.0)
    """
    return float(final_answer(response).split() == final_answer(str(answer)).split())


def number_answer(response: str, answer: Any) -> float:
    """Pay for the same number, with the same unit if both name one.

    Understands `1,234.5`, `3/4`, `1e-3`, `50 %` and `$5`. Of several numbers in the final answer the last one counts.

    Example:
        >>> number_answer("She has 1,024 apples.", "... #### 1024"), number_answer("5 km", "5 m"), number_answer("x", 5)
        (1.0, 0.0, 0.0)
    """
    right = _last_number(final_answer(str(answer)))
    if right is None:
        raise EnvironmentFailure(f"The answer {str(answer)[:80]!r} has no number to compare with.")
    said = _last_number(final_answer(response))
    if said is None or (said[1] and right[1] and said[1] != right[1]):
        return 0.0
    return float(abs(said[0] - right[0]) <= TOLERANCE * abs(right[0]))


def _last_number(text: str) -> tuple[Fraction, str] | None:
    """The last number in a text, and its unit."""
    for found in reversed([one for one in _NUMBER.finditer(text) if any(map(str.isdigit, one.group()))]):
        before = text[found.start() - 1 : found.start()]
        if before.isalnum() or before == "_":  # x2, H2O
            continue
        number, _, divisor = found.group().replace(",", "").replace("\N{MINUS SIGN}", "-").partition("/")
        try:
            decimal = Decimal(number.strip().rstrip("."))
            value = Fraction(decimal) / int(divisor or 1) if abs(decimal.adjusted()) < _MOST_DIGITS else None
        except (InvalidOperation, ZeroDivisionError, ValueError):
            continue
        if value is None:
            continue
        unit = _UNIT.match(text, found.end())
        return value, (unit.group(1) or "").lower() if unit else ""
    return None


def choice_answer(response: str, answer: Any) -> float:
    """Pay for the right letter of a multiple choice: `B`, `(b)`, `The answer is B.`

    Example:
        >>> choice_answer("Answer: (b)", "B"), choice_answer("A or B", "B"), choice_answer("A dog.", "A")
        (1.0, 0.0, 0.0)
    """
    said, right = (_CHOICE.fullmatch(final_answer(text)) for text in (response, str(answer)))
    if right is None:
        raise EnvironmentFailure(f"The answer {str(answer)[:80]!r} is not one letter.")
    return float(said is not None and said.group(1).upper() == right.group(1).upper())


def regex_answer(response: str, answer: Any) -> float:
    """Pay if the whole final answer matches a regular expression.

    Example:
        >>> (
        ...     regex_answer("Answer: 2026-11-16", r"\\d{4}-\\d\\d-\\d\\d"),
        ...     regex_answer("on 2026-11-16", r"\\d{4}-\\d\\d-\\d\\d"),
        ... )
        (1.0, 0.0)
    """
    try:
        return float(re.fullmatch(str(answer), final_answer(response), re.DOTALL) is not None)
    except re.error as error:
        raise EnvironmentFailure(f"The answer {str(answer)[:80]!r} is not a regular expression: {error}.") from None


def json_answer(response: str, answer: Any) -> float:
    """Pay for JSON that fulfils a JSON schema; it may stand in a code block.

    Example:
        >>> schema = {"type": "object", "required": ["name"]}
        >>> json_answer('{"name": "Ada"}', schema), json_answer("[]", schema), json_answer("Ada", schema)
        (1.0, 0.0, 0.0)
    """
    try:
        from jsonschema import SchemaError, ValidationError, validate
    except ImportError as error:
        raise MissingDependency("Checking JSON against a schema needs jsonschema: pip install jsonschema.") from error
    schema: Any = answer if isinstance(answer, (Mapping, bool)) else json.loads(str(answer))
    try:
        validate(json.loads(_code(response)), schema)
    except (ValueError, RecursionError, ValidationError):
        return 0.0
    except SchemaError as error:
        raise EnvironmentFailure(f"The answer is not a JSON schema: {error.message}.") from None
    return 1.0


async def code_answer(response: str, answer: Any) -> float:
    """Pay for Python code with which a test program, the answer, runs to its end in the sandbox.

    The code may stand in a code block. Ending the program early does not pay: its last line of output has to be a
    secret that follows the tests. Code that searches the frames of its own process could still find it.
    """
    from turnsmith.tools.sandbox import run_python

    secret = secrets.token_hex(16)
    program = "\n".join((_code(response), str(answer), f"print('\\n' + '{secret[:16]}' + '{secret[16:]}')"))
    result = await run_python(program)
    return float(result.is_ok and result.output.rstrip().endswith(f"\n{secret}"))


def math_answer(response: str, answer: Any) -> float:
    """Pay for an answer with the same value as the right one, as `\\frac{1}{2}` has that of 0.5; by math-verify."""
    return float(is_equal(final_answer(str(answer)), final_answer(response)))


def _code(response: str) -> str:
    fenced = _FENCE.findall(response)
    return fenced[-1] if fenced else final_answer(response)


SHIPPED: dict[str, Callable[[str, Any], float | Awaitable[float]]] = {
    "exact": exact_answer,
    "number": number_answer,
    "math": math_answer,
    "choice": choice_answer,
    "regex": regex_answer,
    "json_schema": json_answer,
    "tests": code_answer,
}
"""By the names of `--reward`."""


def shipped_scorer(name: str) -> Callable[[str, Any], float | Awaitable[float]]:
    """The scoring function of this name.

    Example:
        >>> shipped_scorer("number")("42", 42)
        1.0
    """
    if name not in SHIPPED:
        known = ", ".join(SHIPPED)
        raise ConfigError(f"There is no reward called {name!r}: use {known}, or module:function for one of your own.")
    return SHIPPED[name]
