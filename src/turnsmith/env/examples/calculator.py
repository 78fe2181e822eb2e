"""A word problem with a calculator as a tool: the smallest environment with tools."""

from __future__ import annotations

import ast
import math
import operator
import random
import re
from typing import Any

from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ToolError
from turnsmith.tools.tool import tool

OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


class Calculator(BaseEnvironment):
    """Solve a word problem with three numbers and answer in plain text. Reward: 1 for the right number, else 0.

    A turn that calls `calculate` gets the tool's result; a turn without a tool call is the answer and goes to `step`.

    Example:
        >>> desk = Calculator()
        >>> desk.reset(seed=1)
        'A box holds 28 pens. 83 boxes arrive, and 19 pens are broken. How many good pens are there?'
        >>> desk.calculate(expression="28 * 83 - 19")
        '2305'
        >>> desk.step("There are 2,305 good pens.")
        ('Right.', 1.0, True, {'answer': 2305.0, 'success': True})
    """

    reward_range = (0.0, 1.0)
    answer: int = 0

    def reset(self, seed: int = 0) -> str:
        """Draw the numbers from the seed."""
        draw = random.Random(seed)
        pens, boxes, broken = draw.randint(11, 99), draw.randint(11, 99), draw.randint(11, 99)
        self.answer = pens * boxes - broken
        return (
            f"A box holds {pens} pens. {boxes} boxes arrive, and {broken} pens are broken. "
            "How many good pens are there?"
        )

    @tool
    def calculate(self, expression: str) -> str:
        """Work out an expression such as (12 + 3) * 4.5 / 2.

        Args:
            expression: Numbers, + - * / and brackets.
        """
        # A short expression of few symbols bounds both the parser's work and the size of the numbers.
        if len(expression) > 200 or not re.fullmatch(r"[\d+\-*/(). ]+", expression, re.ASCII):
            raise ToolError("Write numbers, + - * / and brackets only, at most 200 characters.")
        try:
            value = evaluate_expression(ast.parse(expression.strip(), mode="eval").body)
        except (SyntaxError, KeyError):
            raise ToolError(f"Cannot read {expression!r} as a sum.") from None
        except ZeroDivisionError:
            raise ToolError("Cannot divide by zero.") from None
        return str(value) if isinstance(value, int) else f"{value:.10g}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer: the last number in the model's text."""
        numbers = re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", action.replace(",", ""), re.ASCII)
        answer = float(numbers[-1]) if numbers else None
        right = answer is not None and math.isclose(answer, self.answer)
        observation = "Right." if right else f"No, it is {self.answer}."
        return observation, float(right), True, {"answer": answer, "success": right}

    def solve(self) -> str:
        """The number."""
        return str(self.answer)

    def get_prompt_prefix(self) -> str:
        """Tell the model how to answer."""
        return "Work the task out with the calculator, then answer with the number in plain text."


def evaluate_expression(node: ast.expr) -> int | float:
    """The value of an arithmetic expression's syntax tree; KeyError for anything that is not arithmetic.

    Example:
        >>> evaluate_expression(ast.parse("2 * (3 - 5)", mode="eval").body)
        -4
    """
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=op, operand=operand):
            return OPERATORS[type(op)](evaluate_expression(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](evaluate_expression(left), evaluate_expression(right))
        case _:
            raise KeyError(type(node).__name__)
