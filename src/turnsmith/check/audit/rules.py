"""Rules without skill: texts made from the question alone, or from nothing, that deserve no reward.

They know neither the right answer nor how to find it. What the scorer's own code looks for (its texts and patterns)
counts as no skill: a model that is trained finds it by chance.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from turnsmith.check.audit.writings import in_form
from turnsmith.check.environment.oracle import Task
from turnsmith.check.environment.scripted import plausible_reply
from turnsmith.check.environment.subject import Policy
from turnsmith.rollout.unskilled import BRACKETED, CONSTANTS, QUOTED, TAGS, pieces

NONSENSE = ("", "qwzx vbnm", "Let me think about this step by step. " * 2)
"""Nobody is paid for these on purpose: they tell what no skill gets."""


@dataclass(frozen=True)
class Rule:
    """A way to play without skill, the same for each start."""

    name: str
    """In words that follow `is paid:`."""
    policy: Callable[[Task], Policy | None] = field(repr=False)
    """None where it cannot be applied."""


def say(name: str, text: Callable[[Task], str | None], form: str = "") -> Rule:
    """A rule that says one text in every turn."""

    def policy(task: Task) -> Policy | None:
        said = text(task)
        return None if said is None else lambda turn, prompt: in_form(form, said)

    return Rule(f"{name}, as {form!r}" if form else name, policy)


def constants(words: Sequence[str], tasks: Sequence[Task]) -> dict[str, str]:
    """Texts that are the same for each start: usual ones, those of the scorer's code, and the commonest answer."""
    counted = Counter(task.solution[0] for task in tasks if task.solution and len(task.solution) == 1)
    usual = {f"the commonest answer, {text!r}": text for text, count in counted.most_common(1) if count > 1}
    return {**CONSTANTS, **{f"the scorer's own text {word!r}": word for word in words}, **usual}


def rules(tasks: Sequence[Task], words: Sequence[str], form: str) -> list[Rule]:
    """Every rule that says one text: as it is and, if right answers are paid in a form, in that form."""
    names = dict.fromkeys(name for task in tasks for name in pieces(task.opening))
    texts: dict[str, Callable[[Task], str | None]] = {
        **{name: (lambda task, text=text: text) for name, text in constants(words, tasks).items()},
        **{name: (lambda task, name=name: pieces(task.opening).get(name)) for name in names},
        "three words of the question": lambda task: _some_words(task.opening, task.number),
    }
    return [say(name, text, used) for used in dict.fromkeys(("", form)) for name, text in texts.items()]


def _some_words(opening: str, number: int) -> str:
    return " ".join(random.Random(number).choices(re.findall(r"\w+", TAGS.sub(" ", opening)) or ["yes"], k=3))


def in_turns(tasks: Sequence[Task], form: str) -> list[Rule]:
    """Rules for episodes of several turns: count, try what the observations name, repeat, go to and fro."""
    known = list(dict.fromkeys(text for task in tasks for text in task.solution or ()))[:6]

    def named(turn: int, prompt: str) -> str:
        """What stands in brackets or quotation marks in the last observation, one after the other."""
        last = prompt[-1500:]
        some = [*QUOTED.findall(last), *(one or other for one, other in BRACKETED.findall(last))]
        return some[turn % len(some)] if some else str(turn)

    found = {
        "counting up from 1": lambda turn, prompt: in_form(form, str(turn + 1)),
        "one thing after the other that the observation names": named,
        "words and tool calls drawn from the prompt": plausible_reply,
    }
    for text in known:
        found[f"always {text[:60]!r}"] = lambda turn, prompt, text=text: text
    for one, other in pairwise(known):
        found[f"{one[:40]!r} and {other[:40]!r} in turns"] = lambda turn, prompt, pair=(one, other): pair[turn % 2]
    return [Rule(name, lambda task, policy=policy: policy) for name, policy in found.items()]


def hedges(others: Callable[[Task], Sequence[str]], form: str) -> Mapping[str, Callable[[Task], Policy | None]]:
    """The right answer among wrong ones: it deserves nothing, since nobody was told which one it is."""

    def around(write: Callable[[str, str, str], str]) -> Callable[[Task], Policy | None]:
        def policy(task: Task) -> Policy | None:
            wrong, solution = others(task), task.solution
            if not wrong or not solution or len(solution) != 1 or not task.is_text:
                return None
            text = write(wrong[0], solution[0], wrong[-1])
            return lambda turn, prompt: text

        return policy

    def each(*texts: str, separator: str) -> str:
        return separator.join(in_form(form, text) for text in texts)

    return {
        "wrong answers after it": around(lambda one, right, other: each(right, one, other, separator="\n")),
        "wrong answers before it": around(lambda one, right, other: each(one, other, right, separator="\n")),
        "wrong answers before and after it": around(lambda one, right, other: each(one, right, other, separator="\n")),
        "wrong answers in the same line": around(lambda one, right, other: in_form(form, f"{one} {right} {other}")),
        "wrong answers and commas": around(lambda one, right, other: in_form(form, f"{one}, {right}, {other}")),
        "wrong answers and `or`": around(lambda one, right, other: in_form(form, f"{one} or {right} or {other}")),
    }
