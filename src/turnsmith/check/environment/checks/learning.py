"""Is there something that this model can learn here?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist

from turnsmith.check.environment.scripted import model_episodes
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.tools.tool import tool_methods, untold_tools
from turnsmith.trajectory import Trajectory

_GAIN = 0.1
_MANY_CONSTANT = 0.8
_MANY_FAULTS = 0.1
_MOST_SHOWN = 3


@environment_check("learnable", "the model has something to learn")
async def check_learnable(subject: Subject) -> Finding:
    """Let the model play several episodes from each of a few starts.

    A group whose episodes all get the same reward gives no gradient; such runs cost days and learn nothing.
    """
    if subject.engine is None:
        return Finding("skipped", "Needs the model: pass --model.")
    episodes = await model_episodes(subject)
    result, faults = EvaluationResult(episodes, subject.success_reward), [e for e in episodes if not e.is_counted]
    if len(faults) > _MANY_FAULTS * len(episodes):
        saw = f"{len(faults)} of {len(episodes)} episodes ended in a fault. The first error: {faults[0].error}"
        return Finding("failed", saw, "Fix this first, with `turnsmith play`.", faults[:_MOST_SHOWN])
    rewards: dict[str, list[float]] = {}
    for episode in result.counted:
        rewards.setdefault(episode.group_id, []).append(episode.total_reward)
    size = subject.config.training.group_size
    groups = [group for group in rewards.values() if len(group) > 1]
    if not groups:
        return Finding("skipped", "No start has two episodes of the model that ended without a fault.")
    low, high = constant_share(groups, size)
    success = result.success.value
    share = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    saw = (
        f"{len(result.counted)} episodes: success {success:.0%}, reward {result.reward.value:.3g}; {share} of groups "
        f"of {size} would be constant; {episodes_to_see(success)} episodes show a gain of 10 points."
    )
    if low < _MANY_CONSTANT:
        return Finding("passed", saw)
    harder = "easier starts, a reward for parts of the task, a better prompt or a larger model"
    easier = "harder starts, or a reward that tells good episodes from better ones"
    fix = f"Find {easier if success > 0.5 else harder}; a larger training.group_size or filter_groups helps a little."
    return Finding("warning", saw, fix, result.counted[:_MOST_SHOWN])


def constant_share(rewards: Sequence[Sequence[float]], size: int) -> tuple[float, float]:
    """Bounds on the expected share of groups of `size` whose rewards are all the same, from smaller groups.

    Up to the number of episodes of each start, subsets are counted, which has no bias. For larger groups the share
    never rises, and falls at most as fast as it did last.

    Example:
        >>> constant_share([[0, 0, 0, 0], [0, 1, 0, 1]], 2)
        (0.6666666666666666, 0.6666666666666666)
        >>> constant_share([[0, 0, 0, 0]], 8)
        (1.0, 1.0)
    """
    samples = min(map(len, rewards), default=0)
    if samples < 2:
        return 0.0, 1.0

    def share(k: int) -> float:
        each = [sum(comb(count, k) for count in Counter(group).values()) / comb(len(group), k) for group in rewards]
        return sum(each) / len(each)

    if size <= samples:
        return share(max(2, size)), share(max(2, size))
    last, before = share(samples), share(samples - 1) if samples > 2 else 1.0
    return (last * (last / before) ** (size - samples) if before else 0.0), last


def episodes_to_see(success: float, gain: float = _GAIN) -> int:
    """Episodes in each of two evaluations that show a gain in success with 80 % power at 5 % (two proportions).

    Example:
        >>> episodes_to_see(0.5), episodes_to_see(0.0)
        (388, 74)
    """
    normal, first = NormalDist(), min(success, 1 - gain)
    second, mean = first + gain, first + gain / 2
    alpha = normal.inv_cdf(0.975) * sqrt(2 * mean * (1 - mean))
    beta = normal.inv_cdf(0.8) * sqrt(first * (1 - first) + second * (1 - second))
    return -int(-((alpha + beta) ** 2) // gain**2)


_FORMATS = ("function_calling", "json", "react")
_HALF = 0.5


@environment_check("tool-calls", "tools are called")
async def check_tool_calls(subject: Subject) -> Finding:
    """Look for tool calls in the model's episodes.

    Rewards can rise for weeks without one tool call, when calls are not parsed or not needed.
    """
    names = offered_tools(subject)
    if not names:
        return Finding("skipped", "There are no tools.")
    if subject.engine is None:
        return Finding("skipped", "Needs the model: pass --model.")
    episodes = await model_episodes(subject)
    report = report_of(episodes)
    if not report.tools.calls:
        return _no_call(subject, episodes, names, report.tools.format_problems)
    counts = report.tools
    told = f"{counts.calls} calls, {counts.errors} refused or failed, {counts.format_problems} not readable"
    if report.tools.format_problems > _HALF * (report.tools.calls + report.tools.format_problems):
        fix = "Show a call in the system prompt, or set inference.tool_format to the format that the model knows."
        return Finding("warning", f"Most calls cannot be read: {told}.", fix, _with_problem(episodes))
    if report.tools.errors > _HALF * report.tools.calls:
        return Finding("warning", f"Most calls fail: {told}.", "Look at the tools' errors.", episodes[:_MOST_SHOWN])
    return Finding("passed", f"{len(episodes)} episodes: {told}.")


def _no_call(subject: Subject, episodes: list[Trajectory], names: list[str], problems: int) -> Finding:
    for name in _FORMATS:
        parser = parser_for(name)
        found = [
            e for e in episodes if any(c.name in names for action in e.actions for c in parser.parse(action).calls)
        ]
        if name != subject.config.inference.tool_format and found:
            saw = f"{len(found)} of {len(episodes)} episodes have calls in the format {name}, and none was read."
            return Finding("failed", saw, f"Set inference.tool_format={name}.", found[:_MOST_SHOWN])
    if not any(episode.is_counted for episode in episodes):
        return Finding("skipped", "No episode of the model ended without a fault.")
    success = EvaluationResult(episodes, subject.success_reward).success.value
    saw = (
        f"Not one of {len(episodes)} episodes called a tool ({', '.join(names[:4])}); {problems} calls could not be "
        f"read; success {success:.0%}."
    )
    fix = "Show a call in the system prompt, set inference.tool_format=native, or take a model that can call tools."
    if success > _HALF:
        fix = "The reward does not need the tools: pay for what only they can find out, or leave them out."
    return Finding("warning", saw, fix, _with_problem(episodes) or episodes[:_MOST_SHOWN])


def _with_problem(episodes: list[Trajectory]) -> list[Trajectory]:
    return [e for e in episodes if any("format_problem" in info for info in e.infos)][:_MOST_SHOWN]


def offered_tools(subject: Subject) -> list[str]:
    """The names of the tools that episodes offer."""
    own = [name for spec in subject.environment.each() for name in tool_methods(spec.load())]
    return [*(subject.tools.names if subject.tools is not None else ()), *own]


@environment_check("told-tools", "tools are described", quick=True, plays=False)
async def check_told_tools(subject: Subject) -> Finding:
    """Look at the docstrings and type hints of the environment's `@tool` methods.

    A model that is told neither what a tool does nor what it takes calls it wrongly, or never.
    """
    kinds = [] if subject.is_agent else [spec.load() for spec in subject.environment.each()]
    tools = sum(len(tool_methods(kind)) for kind in kinds)
    if not tools:
        return Finding("skipped", "The environment has no @tool methods.")
    untold = [sentence for kind in kinds for sentence in untold_tools(kind)]
    if untold:
        more = f" And {len(untold) - _MOST_SHOWN} more." if len(untold) > _MOST_SHOWN else ""
        fix = "Add type hints and docstrings: the model is told nothing else about a tool."
        return Finding("warning", " ".join(untold[:_MOST_SHOWN]) + more, fix)
    return Finding("passed", f"All {tools} have a docstring and type hints." if tools > 1 else "It is complete.")


_MANY = 0.1


@environment_check("staleness", "episode length and staleness")
async def check_staleness(subject: Subject) -> Finding:
    """Compare the length of the model's episodes with the typical one, which is about what a step takes.

    Episodes that outlive max_staleness hold up every step.
    """
    training = subject.config.training
    if training.schedule == "sync":
        return Finding("skipped", "All episodes of a step are trained on at once (training.schedule=sync).")
    if subject.engine is None:
        return Finding("skipped", "Needs the model: pass --model.")
    episodes = [episode for episode in await model_episodes(subject) if episode.is_counted and episode.sampled_tokens]
    lengths = sorted(episode.sampled_tokens for episode in episodes)
    if not lengths:
        return Finding("skipped", "No episode of the model counts.")
    typical, steps = lengths[len(lengths) // 2], training.max_staleness + 1
    long = [episode for episode in episodes if episode.sampled_tokens > steps * typical]
    told = f"{len(long)} of {len(lengths)} episodes have more than {steps} times the typical {typical} tokens"
    if len(long) > _MANY * len(lengths):
        saw = f"{told}: with max_staleness={training.max_staleness}, training waits for them."
        fix = "Raise training.max_staleness, or limit inference.max_episode_tokens."
        return Finding("warning", saw, fix, long[:_MOST_SHOWN])
    return Finding("passed", f"{told}.")
