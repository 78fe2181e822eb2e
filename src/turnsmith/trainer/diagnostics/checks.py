"""The built-in checks of a step, one function each: it returns a warning in words, or None.

Pure functions of what a step recorded. A check must be cheap, and silent on a healthy run: the thresholds are chosen so
that such a run is warned of little but its own success.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import refusal_warning
from turnsmith.text import number
from turnsmith.trainer.diagnostics.context import (
    StepContext,
    length_drift,
    new_high_reward_phrase,
    paid_without_skill,
    reward_term_drift,
    success_against_reward,
    unreadable_calls_drift,
)
from turnsmith.trainer.diagnostics.zero_gradient import (
    LIMITS,
    NEARLY_ALL,
    cause_of_zero,
    compares_groups,
    first_line,
)
from turnsmith.trajectory import Outcome

_ZERO = 1e-9
_CONSTANT_GROUPS = 0.75
_ENTROPY_FELL_TO = 0.1
_ROLLOUT_DIFF = 0.02
"""Mean difference of token probabilities. With bfloat16 on both sides it is about 0.005, with float32 under 1e-6."""
_LENGTH_GREW = 2.0
_SHORT_TURN = 32
"""Below this the limit is meant to keep actions short, so turns that reach it are no surprise."""
_REPEATED = 0.5
_TOOL_FAILURES = 0.1
_TOOL_ERRORS = 0.5
_WAITING_SECONDS = 5.0
"""Per episode: less than a model takes for a turn or two."""


Check = Callable[[StepContext], RunWarning | None]


def not_a_number(context: StepContext) -> RunWarning | None:
    """The loss, the gradient or another metric is NaN or infinite."""
    names = ("policy_loss", "value_loss", "grad_norm", "entropy", "kl", "reward/mean")
    bad = [name for name in names if (value := context.value(name)) is not None and not math.isfinite(value)]
    if not bad:
        return None
    return context.warning(
        "not_a_number",
        f"{', '.join(f'{name} is {context.value(name)}' for name in bad)}.",
        "At best the update was skipped; at worst the weights are corrupt, and every later step with them.",
        "Stop, resume from an earlier checkpoint, and lower training.learning_rate or training.max_grad_norm.",
    )


def zero_gradient(context: StepContext) -> RunWarning | None:
    """The step has no gradient; says why."""
    grad_norm, low, high = (context.value(name) for name in ("grad_norm", "advantage/min", "advantage/max"))
    flat = low is not None and high is not None and max(abs(low), abs(high)) < _ZERO
    vanished = grad_norm is not None and grad_norm < _ZERO
    if not (flat or vanished):
        return None
    cause = cause_of_zero(context.report, context.config, flat=flat, clipped=context.value("clip_fraction") or 0.0)
    what = "The gradient is zero" if vanished else "Every advantage is 0"
    return context.warning(
        "zero_gradient",
        f"{what}: {cause.because}.",
        "The step cost as much as any other and did not change the policy"
        + ("." if vanished else ", except through the KL and entropy terms."),
        cause.advice,
        cause.episodes,
    )


def constant_groups(context: StepContext) -> RunWarning | None:
    """Most groups, though not all, have equal rewards."""
    training, report = context.config.training, context.report
    constant, compared = len(report.constant_groups), len(report.compared_groups)
    if not compares_groups(context.config) or training.credit != "episode" or constant == compared:
        return None
    if training.filter_groups or context.is_solved or constant < _CONSTANT_GROUPS * compared:
        return None
    return context.warning(
        "constant_groups",
        f"In {constant} of {compared} groups all episodes got the same reward.",
        f"{training.adv_estimator} compares the episodes of a group; a group with equal rewards gives no gradient.",
        "Use tasks that the model solves sometimes, larger groups (training.group_size), or partial rewards. "
        "training.filter_groups=true replaces such groups.",
        [name for group in report.constant_groups for name in report.group_examples.get(group, [])[:1]],
    )


def failed_episodes(context: StepContext) -> RunWarning | None:
    """Some episodes failed: the environment, the engine or the reward function raised."""
    counts = {name: count for name, count in context.report.outcomes.items() if not Outcome(name).is_behaviour}
    if not counts:
        return None
    total, error = sum(context.report.outcomes.values()), first_line(context.report.first_error)
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    skipped = context.report.not_retried
    return context.warning(
        "failed_episodes",
        f"{sum(counts.values())} of {total} episodes failed ({listed}){f'; the first: {error}' if error else '.'}"
        + (f" {skipped} of them had retries left, which were skipped." if skipped else ""),
        "Failed episodes are not trained on. If they fail because of what the model did, training is biased.",
        "Read the errors of these episodes and fix the environment, the tool or the reward function.",
        [name for outcome in counts for name in context.report.examples.get(outcome, [])],
    )


def long_waits(context: StepContext) -> RunWarning | None:
    """Calls of environments, tools or rewards wait long for their turn."""
    report = context.report
    if report.waiting_seconds < _WAITING_SECONDS:
        return None
    bottleneck, _ = report.waits.most_common(1)[0]
    return context.warning(
        "long_waits",
        f"The calls of an episode waited {number(report.waiting_seconds)} s for their turn, mostly for {bottleneck}.",
        "Waiting counts towards no time limit and changes nothing in the result, but it makes the step slower.",
        "Raise what is named there, or begin fewer episodes at once.",
    )


def reward_out_of_range(context: StepContext) -> RunWarning | None:
    """A reward is outside the declared range."""
    if context.reward_range is None or not context.report.rewards:
        return None
    low, high = context.reward_range
    outside = [reward for reward in context.report.rewards if not low <= reward <= high]
    if not outside:
        return None
    groups = [name for name, rewards in context.report.groups.items() if any(one in outside for one in rewards)]
    return context.warning(
        "reward_out_of_range",
        f"{len(outside)} of {len(context.report.rewards)} rewards are outside {number(low)} to {number(high)}, such as "
        f"{number(outside[0])}.",
        "A single outlier dominates its group, and the model learns to reproduce it.",
        "Fix the reward, or declare the right `reward_range`.",
        [name for group in groups for name in context.report.group_examples.get(group, [])[:1]],
    )


def entropy_collapse(context: StepContext) -> RunWarning | None:
    """The policy has become almost deterministic."""
    trend = context.trend("entropy")
    if context.is_solved or trend is None or trend[0] <= 0 or trend[1] >= _ENTROPY_FELL_TO * trend[0]:
        return None
    return context.warning(
        "entropy_collapse",
        f"Entropy fell to {number(trend[1])}, from {number(trend[0])} in the first steps.",
        "The model acts almost identically in every episode of a group: it has stopped exploring.",
        "If the reward is at its maximum, stop. If not, lower training.learning_rate, raise "
        "training.clip_ratio_high, or set training.entropy_coef.",
    )


def rollout_mismatch(context: StepContext) -> RunWarning | None:
    """Rollout engine and trainer assign different probabilities to the same tokens."""
    mean = context.value("rollout_diff/mean")
    # With an asynchronous schedule, tokens of older weights differ, and are corrected for.
    is_expected = bool(context.value("staleness/max")) and context.value("correction/mean") is not None
    if mean is None or mean <= _ROLLOUT_DIFF or is_expected:
        return None
    return context.warning(
        "rollout_mismatch",
        f"Rollout engine and trainer differ by {number(mean)} in token probability on average "
        f"(at most {number(context.value('rollout_diff/max'))}).",
        "The update is off-policy without knowing it, which can make training collapse.",
        "Set model.dtype=float32 if memory allows, or training.rollout_correction=token. If it is so from the first "
        "step, engine and trainer may not have the same weights or chat template.",
    )


def growing_lengths(context: StepContext) -> RunWarning | None:
    """Episodes have become much longer than they were."""
    trend = context.trend("tokens/response")
    if trend is None or trend[0] <= 0 or trend[1] < _LENGTH_GREW * trend[0]:
        return None
    reward = context.trend("reward/mean")
    beside = f", while the reward went from {number(reward[0])} to {number(reward[1])}" if reward else ""
    return context.warning(
        "growing_lengths",
        f"Episodes grew from {number(trend[0])} to {number(trend[1])} tokens{beside}.",
        f"Steps slow down, and episodes approach their limit of {context.config.inference.max_episode_tokens} tokens.",
        "If the reward does not rise with the length, add a length penalty, or lower inference.max_tokens.",
    )


def cut_turns(context: StepContext) -> RunWarning | None:
    """Almost all turns are cut before the model has finished."""
    report, turns, limit = context.report, sum(context.report.turns), context.config.inference.max_tokens
    if limit < _SHORT_TURN or not turns or report.cut_turns < NEARLY_ALL * turns:
        return None
    return context.warning(
        "cut_turns",
        f"{report.cut_turns} of {turns} turns were cut at {limit} tokens.",
        "The environment receives unfinished text, and rewards it.",
        "Raise inference.max_tokens, or ask for shorter answers in the prompt.",
        report.examples.get("cut_turn"),
    )


def cut_episodes(context: StepContext) -> RunWarning | None:
    """Almost all episodes end at one of their limits."""
    report = context.report
    for outcome, setting in LIMITS.items():
        count, total = report.outcomes.get(outcome.value, 0), sum(report.outcomes.values())
        # An environment that always runs for a fixed number of steps ends as `truncated`, and may mean to.
        if outcome is not Outcome.TRUNCATED and total and count >= NEARLY_ALL * total:
            return context.warning(
                "cut_episodes",
                f"{count} of {total} episodes were cut ({outcome.value}).",
                "Rewards at the end of the task are almost never reached.",
                f"Raise {setting}, or make the task shorter.",
                report.examples.get(outcome.value),
            )
    return None


def repeated_episodes(context: StepContext) -> RunWarning | None:
    """Most episodes of the step are identical."""
    report, total = context.report, len(context.report.rewards)
    alike = max(report.conversations.values(), key=len, default=[])
    if context.is_solved or total < max(4, context.config.training.group_size) or len(alike) < _REPEATED * total:
        return None
    return context.warning(
        "repeated_episodes",
        f"{len(alike)} of {total} episodes are identical, word for word.",
        "Identical episodes get identical rewards, so there is nothing to compare.",
        "Check that inference.temperature is not 0 and that `reset` depends on the seed. If the entropy has collapsed, "
        "that is the cause.",
        alike,
    )


def failing_tools(context: StepContext) -> RunWarning | None:
    """Tools raise exceptions."""
    report = context.report
    if report.tools.failures < max(1.0, _TOOL_FAILURES * report.tools.calls):
        return None
    return context.warning(
        "failing_tools",
        f"{report.tools.failures} of {report.tools.calls} tool calls raised an exception inside the tool.",
        "The model learns to avoid a tool that fails through no fault of its own.",
        "Read the failures in these episodes and fix the tool; raise `ToolError` for mistakes of the model.",
        report.examples.get("tool_failure"),
    )


def misused_tools(context: StepContext) -> RunWarning | None:
    """Most tool calls are invalid."""
    report = context.report
    tried = report.tools.calls + report.tools.format_problems
    wrong = report.tools.errors - report.tools.failures + report.tools.format_problems
    if tried < 8 or wrong < _TOOL_ERRORS * tried:
        return None
    return context.warning(
        "misused_tools",
        f"{wrong} of {tried} tool calls were invalid: {report.tools.format_problems} could not be parsed, "
        f"{report.tools.errors - report.tools.failures} had wrong arguments or were refused.",
        "Turns are spent on calls that do nothing, and the reward may never be reached.",
        "Try another inference.tool_format, describe the tools better, or show an example call in the prompt.",
        [*report.examples.get("format_problem", []), *report.examples.get("tool_error", [])],
    )


def refused_requests(context: StepContext) -> RunWarning | None:
    """The gateway refused requests of agents: what an agent earns without an answer is not the model's work."""
    return refusal_warning(context.report, int(context.record["step"]))


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
    refused_requests,
    success_against_reward,
    reward_term_drift,
    length_drift,
    unreadable_calls_drift,
    paid_without_skill,
    new_high_reward_phrase,
    long_waits,
)
"""All built-in checks, the most important first."""
