"""Attempts that a model writes from the instructions of a task: what a careless scorer may take for right."""

from __future__ import annotations

import json
import re
from typing import cast

from turnsmith.check.environment.oracle import Task
from turnsmith.check.environment.subject import Subject
from turnsmith.errors import EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Sampling

_TOKENS, _MOST = 1024, 12
_ASKED = """\
A program scores answers to the task below. Write ten answers that are wrong or say nothing, and that a careless program
may still score as right: other forms, several answers at once, parts of the task, empty or very long ones. Write them
as one JSON list of strings, and nothing else.

The task:
"""


async def ideas(subject: Subject, tasks: list[Task]) -> list[dict[int, str]]:
    """The model's attempts, each for some of the tasks by their numbers; none without a model."""
    if subject.engine is None or not subject.has_tokenizer:
        return []
    chat, found = cast("Chat", subject.chat), list[dict[int, str]]()
    for task in tasks:
        prompt = chat.open([{"role": "user", "content": _ASKED + task.opening}])
        sampling = Sampling(_TOKENS, subject.config.inference.temperature, seed=subject.seed)
        try:
            generation = await subject.engine.generate(prompt, sampling, session=f"ideas-{task.number}")
        except EngineFailure:
            continue  # the prompt is too long for it
        for place, text in enumerate(read_list(chat.text(generation.token_ids))):
            found += [{}] if place == len(found) else []
            found[place][task.number] = text
    return found


def read_list(text: str) -> list[str]:
    """The texts of the first JSON list; of one that was cut, those that are whole.

    Example:
        >>> read_list('Here: ["24", "3*8"]'), read_list('["24", "3*'), read_list("none")
        (['24', '3*8'], ['24'], [])
    """
    _, bracket, rest = text.partition("[")
    quoted = re.findall(r'"(?:[^"\\]|\\.)*"', rest) if bracket else []
    texts = list[str]()
    for one in quoted[:_MOST]:
        try:
            texts.append(str(json.loads(one, strict=False)))
        except ValueError:
            continue
    return texts
