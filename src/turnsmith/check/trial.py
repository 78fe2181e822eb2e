"""A trial before a run: whether episodes open, fit into the limit on tokens, and take a step.

What all of a few starts fail with in the same way, whatever is answered, every episode of the run would fail with: that
finding has failed. What some of them fail with may be luck, or what a model that has learned something never runs into:
that is a warning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from turnsmith.check.finding import Check, Finding
from turnsmith.check.generation_config import model_file
from turnsmith.check.opening import is_open
from turnsmith.check.oracle import find_tasks
from turnsmith.check.panel import oracle
from turnsmith.check.scripted import plausible_reply
from turnsmith.check.subject import Policy, Subject
from turnsmith.env.isolation.settings import HERE, PROCESSES
from turnsmith.errors import TurnsmithError
from turnsmith.trajectory import Outcome, Trajectory

_REPLIES: tuple[Policy, ...] = (plausible_reply, lambda turn, prompt: "7", lambda turn, prompt: '{"answer": 7}')
"""Given in turn to the starts: an environment that refuses one kind of text may take another."""
_REFUSES_A_TEXT = re.compile(r"raised (ValueError|AssertionError|\w*DecodeError)\b")
"""Errors that a model's text can be the cause of."""
_LASTING = (Outcome.ENVIRONMENT_FAILED, Outcome.REWARD_FAILED)


async def check_trial(subject: Subject) -> Finding:
    """Measure the openings, and play a step from each start; with a reward function, an episode."""
    if subject.is_agent:
        return Finding("skipped", "An agent asks the model itself.")
    opened = await subject.first_openings()
    if (long := _too_long(subject, opened)) is not None:
        return long
    if any(spec.mode not in (*HERE, *PROCESSES) or "://" in str(spec.target) for spec in subject.environment.each()):
        return Finding("skipped", "The environment runs on another machine.")
    spec = subject.rollout()
    if subject.reward_fn is None:
        spec = replace(spec, limits=replace(spec.limits, turns=1))
    starts = subject.starts()
    policies = [_REPLIES[number % len(_REPLIES)] for number in range(len(starts))]
    played = await asyncio.gather(
        *(subject.play(policy, [start], rollout=spec) for policy, start in zip(policies, starts, strict=True))
    )
    failed = [episode for [episode] in played if not episode.is_counted]
    if not failed:
        return Finding("passed", f"{len(starts)} starts were opened, and took a step.")
    saw = f"{len(failed)} of {len(starts)} episodes failed, the first: {failed[0].error}"
    fix = "If this is no luck, fix it: an episode that fails is not trained on."
    is_sure = len(failed) == len(starts) and same_fault(failed) and not await _is_solved(subject)
    return Finding("failed" if is_sure else "warning", saw, fix, failed)


def same_fault(failed: Sequence[Trajectory]) -> str:
    """The error with which all have failed, if it is one that lasts and that no text is the cause of; else empty."""
    # Seeds, addresses and times differ from one to the next.
    kinds = {(episode.outcome, re.sub(r"0x[0-9a-f]+|\d+", "#", episode.error)) for episode in failed}
    error = failed[0].error
    lasts = all(episode.outcome in _LASTING for episode in failed)
    is_of_a_text = any(episode.actions for episode in failed) and _REFUSES_A_TEXT.search(error)
    return error if lasts and len(kinds) == 1 and not is_of_a_text else ""


async def _is_solved(subject: Subject) -> bool:
    """Whether the environment's own solution, if it has one, gets through."""
    try:
        [task] = await find_tasks(subject, 1)
        solution = oracle(task)
        return solution is not None and (await subject.play(solution, [task.start]))[0].is_counted
    except TurnsmithError:
        return False


def _too_long(subject: Subject, opened: Sequence[Trajectory]) -> Finding | None:
    """What is wrong if an opening has more tokens than are allowed, without the few that the chat template adds.

    Measured without transformers, whose import takes longer than all of this, and only if there are bytes enough.
    """
    limit = subject.config.inference.max_prompt_tokens
    # With `native` the template describes the tools, in its own words, and not the system prompt.
    roles = ("user",) if subject.config.inference.tool_format == "native" else ("user", "system")
    asked = [one.messages for one in opened if is_open(one)]
    texts = [[str(message["content"]) for message in messages if message["role"] in roles] for messages in asked]
    if all(sum(len(text.encode(errors="replace")) for text in one) <= limit for one in texts):
        return None
    file = model_file(subject.model_path, "tokenizer.json")
    if file is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    lengths = [sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in one) for one in texts]
    long = [length for length in lengths if length > limit]
    if not long:
        return None
    saw = f"{len(long)} of {len(lengths)} openings have more tokens than the {limit} allowed, up to {max(long)}."
    fix = "Shorten the first observation or the system prompt, or raise inference.max_prompt_tokens."
    return Finding("failed" if len(long) == len(opened) else "warning", saw, fix)


TRIAL = Check(
    "first step",
    "Measures the openings of a few starts in tokens, and plays a step from each with a scripted text.",
    "A run in which every episode fails ends in its first step, minutes later.",
    check_trial,
    quick=True,
)
