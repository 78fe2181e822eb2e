"""What can be wrong with a step, one function for each; each says it in words or returns None.

Pure functions of what a step recorded. A check must be cheap, and quiet on a run that goes well: the limits are chosen
so that a healthy run is warned of little but its own success.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import group_examples
from turnsmith.text import number
from turnsmith.trainer.diagnostics.context import StepContext
from turnsmith.trainer.diagnostics.zero_gradient import (
    LIMITS,
    NEARLY_ALL,
    cause_of_zero,
    compares_groups,
    first_line,
    turn_limit,
)
from turnsmith.trajectory import Outcome

_ZERO = 1e-9
_CONSTANT_GROUPS = 0.75
_ENTROPY_FELL_TO = 0.1
_ROLLOUT_DIFF = 0.02
"""Mean difference of probabilities. bfloat16 on both sides gives about 0.005, float32 less than 0.000001."""
_LENGTH_GREW = 2.0
_SHORT_TURN = 32
"""A limit below this is chosen so that actions are short; turns that reach it are no surprise."""
_REPEATED = 0.5
_TOOL_FAILURES = 0.1
_TOOL_ERRORS = 0.5


Check = Callable[[StepContext], RunWarning | None]


def not_a_number(seen: StepContext) -> RunWarning | None:
    """The update is NaN or infinite."""
    names = ("policy_loss", "value_loss", "grad_norm", "entropy", "kl", "reward/mean")
    bad = [name for name in names if (value := seen.value(name)) is not None and not math.isfinite(value)]
    if not bad:
        return None
    return seen.warning(
        "not_a_number",
        f"{', '.join(f'{name} is {seen.value(name)}' for name in bad)}.",
        "At best the update was skipped, at worst the weights are spoilt and every later step with them.",
        "Stop, go back to a checkpoint from before, and lower training.learning_rate or training.max_grad_norm.",
    )


def zero_gradient(seen: StepContext) -> RunWarning | None:
    """Nothing is learnt in this step; says why."""
    grad_norm, low, high = (seen.value(name) for name in ("grad_norm", "advantage/min", "advantage/max"))
    flat = low is not None and high is not None and max(abs(low), abs(high)) < _ZERO
    vanished = grad_norm is not None and grad_norm < _ZERO
    if not (flat or vanished):
        return None
    cause = cause_of_zero(seen.report, seen.config, flat=flat, clipped=seen.value("clip_fraction") or 0.0)
    told = "The gradient is zero" if vanished else "The rewards teach nothing, every advantage is 0"
    return seen.warning(
        "zero_gradient",
        f"{told}: {cause.because}.",
        "The step cost as much as any other and left the policy as it was"
        + ("." if vanished else ", but for the KL and entropy terms."),
        cause.advice,
        cause.episodes,
    )


def constant_groups(seen: StepContext) -> RunWarning | None:
    """Most groups, though not all, have nothing to compare."""
    training, report = seen.config.training, seen.report
    constant, compared = len(report.constant_groups), len(report.compared_groups)
    if not compares_groups(seen.config) or training.credit != "episode" or constant in (0, compared):
        return None
    if seen.is_solved or constant < _CONSTANT_GROUPS * compared:
        return None
    return seen.warning(
        "constant_groups",
        f"In {constant} of {compared} groups all episodes got the same reward.",
        f"{training.adv_estimator} compares the episodes of a group; those of a constant group teach nothing.",
        "Use starts that the model masters sometimes, larger groups (training.group_size), or rewards for parts.",
        [name for group in report.constant_groups for name in group_examples(report, group)[:1]],
    )


def failed_episodes(seen: StepContext) -> RunWarning | None:
    """Some episodes failed: the environment, the engine or the reward function raised or gave no number."""
    counts = {name: count for name, count in seen.report.outcomes.items() if not Outcome(name).is_behaviour}
    if not counts:
        return None
    total, error = sum(seen.report.outcomes.values()), first_line(seen.report.first_error)
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    return seen.warning(
        "failed_episodes",
        f"{sum(counts.values())} of {total} episodes failed ({listed}){f'; the first: {error}' if error else '.'}",
        "Failed episodes are not trained on. If they fail because of what the model did, training becomes one-sided.",
        "Read the error of these episodes and mend the environment, the tool or the reward function.",
        [name for outcome in counts for name in seen.report.examples.get(outcome, [])],
    )


def reward_out_of_range(seen: StepContext) -> RunWarning | None:
    """A reward lies outside what was declared."""
    if seen.reward_range is None or not seen.report.rewards:
        return None
    low, high = seen.reward_range
    outside = [reward for reward in seen.report.rewards if not low <= reward <= high]
    if not outside:
        return None
    groups = [name for name, rewards in seen.report.groups.items() if any(one in outside for one in rewards)]
    return seen.warning(
        "reward_out_of_range",
        f"{len(outside)} of {len(seen.report.rewards)} episodes got a reward outside {number(low)} to {number(high)}, "
        f"such as {number(outside[0])}.",
        "One reward that is far too large outweighs all others of its group, and the model learns to get it again.",
        "Mend the reward, or declare the right `reward_range`.",
        [name for group in groups for name in group_examples(seen.report, group)[:1]],
    )


def entropy_collapse(seen: StepContext) -> RunWarning | None:
    """The model has become nearly certain of every token."""
    trend = seen.trend("entropy")
    if seen.is_solved or trend is None or trend[0] <= 0 or trend[1] >= _ENTROPY_FELL_TO * trend[0]:
        return None
    return seen.warning(
        "entropy_collapse",
        f"Entropy fell to {number(trend[1])}, from {number(trend[0])} in the first steps.",
        "The model says nearly the same in every episode of a group: it has stopped exploring.",
        "If the reward is as high as it can be, stop. If not, lower training.learning_rate, raise "
        "training.clip_ratio_high, or set training.entropy_coef.",
    )


def rollout_mismatch(seen: StepContext) -> RunWarning | None:
    """The engine that plays and the trainer that learns disagree about the same tokens."""
    mean = seen.value("rollout_diff/mean")
    if mean is None or mean <= _ROLLOUT_DIFF:
        return None
    return seen.warning(
        "rollout_mismatch",
        f"For the same tokens, engine and trainer differ by {number(mean)} in probability on average "
        f"(at most {number(seen.value('rollout_diff/max'))}).",
        "The update is for another policy than the one that played, which can make training collapse.",
        "Set model.dtype=float32 if memory allows, or training.rollout_correction=token. If it is so from the first "
        "step, engine and trainer may not have the same weights or template.",
    )


def growing_lengths(seen: StepContext) -> RunWarning | None:
    """Episodes have become much longer than they were."""
    trend = seen.trend("tokens/response")
    if trend is None or trend[0] <= 0 or trend[1] < _LENGTH_GREW * trend[0]:
        return None
    reward = seen.trend("reward/mean")
    beside = f", while the reward went from {number(reward[0])} to {number(reward[1])}" if reward else ""
    return seen.warning(
        "growing_lengths",
        f"Episodes grew from {number(trend[0])} to {number(trend[1])} tokens{beside}.",
        f"Steps slow down, and episodes come near their limit of {seen.config.inference.max_episode_tokens} tokens.",
        "If the reward does not rise with the length, pay less for long episodes, or lower inference.max_tokens.",
    )


def cut_turns(seen: StepContext) -> RunWarning | None:
    """Nearly all turns are cut before the model has finished."""
    report, turns, limit = seen.report, sum(seen.report.turns), turn_limit(seen.config)
    if limit < _SHORT_TURN or not turns or report.cut_turns < NEARLY_ALL * turns:
        return None
    return seen.warning(
        "cut_turns",
        f"{report.cut_turns} of {turns} turns were cut at {limit} tokens.",
        "The environment is given sentences that stop in the middle, and the model is paid for them.",
        "Raise inference.max_tokens, or ask for short answers in the prompt.",
        report.examples.get("cut_turn"),
    )


def cut_episodes(seen: StepContext) -> RunWarning | None:
    """Nearly all episodes end at one of our limits."""
    report = seen.report
    for outcome, setting in LIMITS.items():
        count, total = report.outcomes.get(outcome.value, 0), sum(report.outcomes.values())
        # An environment that always runs for a fixed time ends as `truncated`: that is its own business.
        if outcome is not Outcome.TRUNCATED and total and count >= NEARLY_ALL * total:
            return seen.warning(
                "cut_episodes",
                f"{count} of {total} episodes were cut ({outcome.value}).",
                "What is paid at the end of the task is hardly ever paid.",
                f"Raise {setting}, or make the task shorter.",
                report.examples.get(outcome.value),
            )
    return None


def repeated_episodes(seen: StepContext) -> RunWarning | None:
    """One conversation makes up most of the step."""
    report, total = seen.report, len(seen.report.rewards)
    alike = max(report.conversations.values(), key=len, default=[])
    if seen.is_solved or total < max(4, seen.config.training.group_size) or len(alike) < _REPEATED * total:
        return None
    return seen.warning(
        "repeated_episodes",
        f"{len(alike)} of {total} episodes are the same conversation, word for word.",
        "Episodes that are the same get the same reward: there is nothing to compare.",
        "See that inference.temperature is not 0 and that `reset` makes another start of another seed. If entropy has "
        "collapsed, that is the cause.",
        alike,
    )


def failing_tools(seen: StepContext) -> RunWarning | None:
    """Tools themselves fail."""
    report = seen.report
    if report.tool_failures < max(1.0, _TOOL_FAILURES * report.tool_calls):
        return None
    return seen.warning(
        "failing_tools",
        f"{report.tool_failures} of {report.tool_calls} tool calls failed inside the tool.",
        "The model learns to avoid a tool that fails for no reason of its own.",
        "Read the failure in these episodes and mend the tool; raise `ToolError` for what the model did wrong.",
        report.examples.get("tool_failure"),
    )


def misused_tools(seen: StepContext) -> RunWarning | None:
    """Most tool calls are wrong, or cannot be read."""
    report = seen.report
    tried = report.tool_calls + report.format_problems
    wrong = report.tool_errors - report.tool_failures + report.format_problems
    if tried < 8 or wrong < _TOOL_ERRORS * tried:
        return None
    return seen.warning(
        "misused_tools",
        f"{wrong} of {tried} tool calls were wrong: {report.format_problems} could not be read, "
        f"{report.tool_errors - report.tool_failures} had wrong arguments or were refused.",
        "Turns go into calls that do nothing, and the reward may never be reached.",
        "Try another inference.tool_format, describe the tools better, or show an example call in the prompt.",
        [*report.examples.get("format_problem", []), *report.examples.get("tool_error", [])],
    )


CHECKS: tuple[Check, ...] = (
    not_a_number,
    zero_gradient,
    constant_groups,
    failed_episodes,
    reward_out_of_range,
    entropy_collapse,
    rollout_mismatch,
    growing_lengths,
    cut_turns,
    cut_episodes,
    repeated_episodes,
    failing_tools,
    misused_tools,
)
"""All checks, the most telling first."""
