"""Do episodes open, fit into the limit on tokens, and take a step? The trial before a run.

A few starts are tried with several answers. If all of them fail in the same way, every episode of the run would, so the
check has failed. If only some fail, that may be chance, or a fault that a trained model never meets: it is a warning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from turnsmith.check.environment.model_files import model_file
from turnsmith.check.environment.oracle import find_tasks, oracle
from turnsmith.check.environment.scripted import plausible_reply
from turnsmith.check.environment.subject import Policy, Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.errors import TurnsmithError
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.trajectory import Outcome, Trajectory


def is_open(episode: Trajectory) -> bool:
    """Whether its environment was reset, and its opening fits into the limits."""
    return episode.tokens.prompt_length > 0


@environment_check("opening", "an episode opens")
async def check_opening(subject: Subject) -> Finding:
    """Whether an episode opens from any of the first starts. An agent opens its conversation itself.

    Without an opening there is nothing to train on, and nothing else to check.
    """
    if subject.is_agent:
        return Finding("passed", "An agent opens its conversation itself.")
    opened = await subject.first_openings()
    if count := sum(map(is_open, opened)):
        return Finding("passed", f"{count} of {len(opened)} starts open.")
    _, long = await measured(subject, subject.starts())
    if long is not None:
        return long
    saw = f"No episode opens, from none of {len(opened)} starts: {opened[0].error}"
    return Finding("failed", saw, "Make `reset` work: the checks that play episodes need it.", opened)


async def measured(subject: Subject, starts: Sequence[EpisodeStart]) -> tuple[str, Finding | None]:
    """The number of tokens in the openings of these starts, in words, and a finding if some do not fit."""
    # No opening is refused here, because its length is reported too.
    spec, limit = subject.rollout(), subject.config.inference.max_prompt_tokens
    spec = replace(spec, limits=replace(spec.limits, prompt_tokens=10**9))
    opened = [episode for episode in await subject.openings(starts, rollout=spec) if is_open(episode)]
    lengths = sorted(episode.tokens.prompt_length for episode in opened)
    long = [episode for episode in opened if episode.tokens.prompt_length > limit]
    told = f"openings have {lengths[len(lengths) // 2]} tokens, at most {lengths[-1]}" if lengths else ""
    if not long or not subject.has_tokenizer:
        return told, None
    saw = f"{len(long)} of {len(opened)} starts do not fit into max_prompt_tokens={limit}: {told}."
    fix = f"Set inference.max_prompt_tokens={lengths[-1]} or more, or shorten the first observation."
    return told, Finding("failed", saw, fix, long[:2])


_REPLIES: tuple[Policy, ...] = (plausible_reply, lambda turn, prompt: "7", lambda turn, prompt: '{"answer": 7}')
"""The starts get these in turn: an environment that refuses one kind of text may take another."""
_REFUSES_A_TEXT = re.compile(r"raised (ValueError|AssertionError|\w*DecodeError)\b")
"""Errors that a model's text can cause."""
_LASTING = (Outcome.ENVIRONMENT_FAILED, Outcome.REWARD_FAILED)


@environment_check("first-step", "first step", quick=True)
async def check_trial(subject: Subject) -> Finding:
    """Measure the openings, and play a step from each start; with a reward function, an episode.

    A run in which every episode fails ends in its first step, minutes later.
    """
    if subject.is_agent:
        return Finding("skipped", "An agent asks the model itself.")
    opened = await subject.first_openings()
    if (long := _too_long(subject, opened)) is not None:
        return long
    if any("://" in str(spec.target) for spec in subject.environment.each()):
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
    """The error with which all episodes fail, if it lasts and no text causes it; otherwise empty."""
    # Seeds, addresses and times differ from one to the next.
    kinds = {(episode.outcome, re.sub(r"0x[0-9a-f]+|\d+", "#", episode.error)) for episode in failed}
    error = failed[0].error
    lasts = all(episode.outcome in _LASTING for episode in failed)
    is_of_a_text = any(episode.actions for episode in failed) and _REFUSES_A_TEXT.search(error)
    return error if lasts and len(kinds) == 1 and not is_of_a_text else ""


async def _is_solved(subject: Subject) -> bool:
    """Whether the environment has a solution that works."""
    try:
        [task] = await find_tasks(subject, 1)
        solution = oracle(task)
        return solution is not None and (await subject.play(solution, [task.start]))[0].is_counted
    except TurnsmithError:
        return False


def _too_long(subject: Subject, opened: Sequence[Trajectory]) -> Finding | None:
    """A finding if openings have too many tokens, not counting the few that the chat template adds.

    The tokens are counted only if there are enough bytes, and without transformers, whose import takes longer.
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
