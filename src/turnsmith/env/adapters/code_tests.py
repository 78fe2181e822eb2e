"""The reward `tests`: Python code that a model has written, and a program of tests."""

from __future__ import annotations

import secrets
from typing import Any

from turnsmith.env.adapters.final_answers import MOST_CHARACTERS, code_in


def check_tests(answer: Any) -> None:
    """Raise if these tests cannot be run."""
    str(answer)


async def code_answer(response: str, answer: Any) -> float:
    """Pay for Python code with which a test program, the answer, runs to its end in the sandbox.

    The code may stand in a code block. Ending the program early does not pay: its last line of output has to be a
    secret that follows the tests. Code that searches the frames of its own process could still find it.
    """
    from turnsmith.tools.sandbox import run_python

    code, secret = code_in(response), secrets.token_hex(16)
    if len(code) > MOST_CHARACTERS:
        return 0.0
    program = "\n".join((code, str(answer), f"print('\\n' + '{secret[:16]}' + '{secret[16:]}')"))
    result = await run_python(program)
    return float(result.is_ok and result.output.rstrip().endswith(f"\n{secret}"))
