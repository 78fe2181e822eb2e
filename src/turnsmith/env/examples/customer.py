"""A simulated user for examples: a function that plays a player."""

from __future__ import annotations


def customer(messages: list[dict[str, str]]) -> str:
    """A customer who asks for tea, and thanks for anything.

    Example:
        >>> customer([{"role": "user", "content": "Good morning!"}])
        'Tea, please.'
    """
    return "Thanks!" if "here you are" in messages[-1]["content"].lower() else "Tea, please."
