"""Finds a response's final answer, in linear time for any text."""

from __future__ import annotations

import re

MOST_CHARACTERS = 100_000
"""Every reward that ships with turnsmith gives 0 for a longer final answer."""
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_MARK = re.compile(r"####|\banswer\s*(?:is\s*:|is\b|:)", re.IGNORECASE)
_BOXED = "\\boxed{"
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)


def final_answer(response: str) -> str:
    """The final answer in a response, without white space around it.

    Example:
        >>> final_answer("2 + 2 is 4.\\n#### 4"), final_answer(r"So \\boxed{\\frac{1}{2}}."), final_answer(" yes ")
        ('4', '\\\\frac{1}{2}', 'yes')
    """
    found = _last_tagged(response)
    if found is None:
        found = _last_boxed(response)
    if found is None:
        end = 0
        for mark in _MARK.finditer(response):
            end = mark.end()
        found = response[end:]
    return found.strip()


def code_in(response: str) -> str:
    """The code in the last code block of a response, or else its final answer."""
    fenced = None
    for block in _FENCE.finditer(response):
        fenced = block
    return fenced.group(1) if fenced else final_answer(response)


def _last_tagged(response: str) -> str | None:
    """The text between the last `</answer>` and the `<answer>` that it closes."""
    start, found = -1, None
    for tag in _TAG.finditer(response):
        if not tag.group(1):
            start = tag.end()
        elif start >= 0:
            start, found = -1, (start, tag.start())
    return response[slice(*found)] if found else None


def _last_boxed(response: str) -> str | None:
    start = response.rfind(_BOXED)
    if start < 0:
        return None
    depth = 0
    for place in range(start + len(_BOXED) - 1, len(response)):
        depth += {"{": 1, "}": -1}.get(response[place], 0)
        if not depth:
            return response[start + len(_BOXED) : place]
    return None  # the response was cut off
