"""A pydantic-ai agent with a calculator, as it would be without turnsmith: only its model's URL is turnsmith's.

It needs `pip install 'pydantic-ai-slim[openai]'`. Try it, then train it:

    turnsmith eval examples/calculator_agent.py:solve --data problems.jsonl --model smollm2
    turnsmith train examples/calculator_agent.py:solve --data problems.jsonl --model smollm2
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from turnsmith.env.examples import Calculator
from turnsmith.errors import ToolError


def calculate(expression: str) -> str:
    """Work out an expression such as (12 + 3) * 4.5 / 2.

    Args:
        expression: Numbers, + - * / and brackets.
    """
    try:
        return Calculator().calculate(expression=expression)
    except ToolError as error:
        raise ModelRetry(str(error)) from error


async def solve(task: dict[str, Any], model: Any) -> float:
    """Answer a word problem; the reward is 1 for the right number."""
    provider = OpenAIProvider(base_url=model.url, api_key=model.key)
    agent = Agent(
        OpenAIChatModel("any", provider=provider),
        system_prompt="Work the task out with the calculator, then answer with the number in plain text.",
        tools=[calculate],
    )
    try:
        result = await agent.run(task["question"], usage_limits=UsageLimits(request_limit=3))
    except (ModelHTTPError, UnexpectedModelBehavior, UsageLimitExceeded):
        return 0.0  # a call that pydantic-ai cannot read, or too many of them: the model's fault, not the agent's
    numbers = re.findall(r"\d+", result.output.replace(",", ""))
    return float(numbers[-1:] == [task["answer"]])
