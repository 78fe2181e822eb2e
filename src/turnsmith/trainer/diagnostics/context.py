"""What a step shows: its record of metrics, what a check can look at, and what has drifted since the first steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import EpisodeReport
from turnsmith.rollout.episode_summary import best, drift_metrics
from turnsmith.text import number

WINDOW = 5
"""Steps to average for a trend."""
_SOLVED = 0.95


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a check looks at. Your own check is a function of it that returns a `RunWarning` or None.

    Example:
        >>> def slow_steps(context: StepContext) -> RunWarning | None:
        ...     seconds = context.value("time/step") or 0.0
        ...     if seconds < 600:
        ...         return None
        ...     return context.warning("slow_steps", f"The step took {seconds:.0f} s.", "Time is money.", "Profile it.")
        >>> slow_steps(StepContext({"step": 3, "time/step": 700.0}, EpisodeReport())).what
        'The step took 700 s.'
    """

    record: Mapping[str, Any]
    """The step's metrics."""
    report: EpisodeReport
    """The step's episodes."""
    config: ConfigStore = field(default_factory=ConfigStore)
    first: Sequence[Mapping[str, Any]] = ()
    """The metrics of the run's first steps."""
    recent: Sequence[Mapping[str, Any]] = ()
    """The metrics of the latest steps, this one included; none of them is in `first`."""
    first_phrases: frozenset[str] = frozenset()
    """Phrases that the model wrote in the first steps, as `EpisodeSummary` has them; empty while there are too few."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest possible reward, if the environment or the reward function declares it."""

    def value(self, name: str) -> float | None:
        """A metric of this step; None if it has no such number."""
        value = self.record.get(name)
        return float(value) if isinstance(value, int | float) else None

    def trend(self, name: str) -> tuple[float, float] | None:
        """A metric's mean over the first and over the latest steps; None while there are too few."""
        means: list[float] = []
        for records in (self.first, self.recent):
            values = [float(one[name]) for one in records if isinstance(one.get(name), int | float)]
            if len(values) < WINDOW or not all(map(math.isfinite, values)):
                return None
            means.append(sum(values) / len(values))
        return means[0], means[1]

    @property
    def is_solved(self) -> bool:
        """Whether rewards are close to the declared maximum, or success close to 1."""
        mean, success = self.value("reward/mean"), self.value("success/mean")
        if self.reward_range is not None and mean is not None:
            low, high = self.reward_range
            return mean >= low + _SOLVED * (high - low)
        return success is not None and success >= _SOLVED

    def warning(self, name: str, what: str, why: str, advice: str, episodes: Sequence[str] | None = None) -> RunWarning:
        """A warning that begins at this step."""
        return RunWarning(name, int(self.record["step"]), what, why, advice, tuple(episodes or ())[:3])


_VERL_NAMES = {
    "entropy": "actor/entropy",
    "kl": "actor/ppo_kl",
    "kl/loss": "actor/kl_loss",
    "kl/reward": "actor/reward_kl_penalty",
    "kl/coef": "actor/reward_kl_penalty_coeff",
    "policy_loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "clip_fraction": "actor/pg_clipfrac",
    "value_loss": "critic/vf_loss",
    "value_clip_fraction": "critic/vf_clipfrac",
    "value_explained": "critic/vf_explained_var",
    "tokens/prompt": "prompt_length/mean",
    "tokens/response": "response_length/mean",
    "rollout_diff/mean": "training/rollout_probs_diff_mean",
    "rollout_diff/max": "training/rollout_probs_diff_max",
    "correction/mean": "rollout_corr/rollout_is_mean",
    "correction/max": "rollout_corr/rollout_is_max",
    "correction/share": "rollout_corr/rollout_is_ratio_fraction_high",
    "staleness/mean": "training/off_policy/trajectory_staleness_worst/mean",
    "staleness/max": "training/off_policy/trajectory_staleness_worst/max",
    "advantage/max": "critic/advantages/max",
    "advantage/min": "critic/advantages/min",
    "perf/tokens_per_second": "perf/throughput",
    "perf/mfu": "perf/mfu/actor",
    "perf/memory_gib": "actor/perf/max_memory_allocated_gb",
    "perf/memory_reserved_gib": "actor/perf/max_memory_reserved_gb",
    "time/step": "timing_s/step",
    "time/generate": "timing_s/gen",
    "time/old_log_prob": "timing_s/old_log_prob",
    "time/ref": "timing_s/ref",
    "time/values": "timing_s/values",
    "time/advantage": "timing_s/adv",
    "time/update_critic": "timing_s/update_critic",
    "time/update_actor": "timing_s/update_actor",
    "time/sync_weights": "timing_s/update_weights",
    "time/checkpoint": "timing_s/save_checkpoint",
}


def step_record(step: int, epoch: int, verl_metrics: dict[str, Any], episodes: EpisodeReport) -> dict[str, Any]:
    """The flat record of a step."""
    record: dict[str, Any] = {"step": step, "epoch": epoch, **episodes.metrics()}
    has_calls = bool(episodes.tools.calls or episodes.tools.format_problems)
    record |= drift_metrics(episodes.summaries, has_calls=has_calls)
    record |= {ours: float(verl_metrics[theirs]) for ours, theirs in _VERL_NAMES.items() if theirs in verl_metrics}
    # verl reports 0 for what it cannot measure: memory of a CPU, MFU on a GPU that it does not know.
    return {name: value for name, value in record.items() if value or not name.startswith("perf/")}


_DOUBLED, _HALVED = 2.0, 0.5
_UNREADABLE_MORE = 0.25
_SHARES = {"unreadable/best": "the best paid quarter of episodes", "unreadable/all": "the episodes"}


def length_drift(context: StepContext) -> RunWarning | None:
    """The longest tenth has doubled though the mean has not, or half of the episodes are half as long for no reward."""
    long, middle, mean = (context.trend(name) for name in ("length/p90", "length/p50", "tokens/response"))
    reward = context.trend("reward/mean")
    if long is None or middle is None:
        return None
    by_length = sorted(context.report.summaries, key=lambda one: one.tokens)
    if long[0] > 0 and long[1] >= _DOUBLED * long[0] and not (mean and mean[1] >= _DOUBLED * mean[0]):
        what = (
            f"The longest tenth of episodes has {number(long[1])} sampled tokens or more, {number(long[0])} in the "
            f"first steps; half of them have at most {number(middle[1])}, as against {number(middle[0])}."
        )
        shown = by_length[::-1]
    elif middle[1] <= _HALVED * middle[0] and reward is not None and reward[1] <= reward[0]:
        what = (
            f"Half of the episodes have at most {number(middle[1])} sampled tokens, {number(middle[0])} in the first "
            "steps, and the reward has not risen."
        )
        shown = by_length
    else:
        return None
    return context.warning(
        "length_drift",
        what,
        "Some way of writing pays, or ends episodes, whatever the task is; means hide it.",
        "Read these episodes. If length pays, cap it or penalise it; if brevity does, pay for what is left out.",
        [one.episode_id for one in shown],
    )


def unreadable_calls_drift(context: StepContext) -> RunWarning | None:
    """Tool calls that cannot be parsed are in many more of the best paid episodes, or of all, than at first."""
    found = {
        words: trend
        for name, words in _SHARES.items()
        if (trend := context.trend(name)) is not None and trend[1] >= trend[0] + _UNREADABLE_MORE
    }
    if not found:
        return None
    words, trend = next(iter(found.items()))
    shown = [one for one in context.report.summaries if one.has_format_problem]
    shown.sort(key=lambda one: one.reward, reverse=True)
    return context.warning(
        "unreadable_calls_drift",
        f"{trend[1]:.0%} of {words} have a tool call that cannot be parsed, and {trend[0]:.0%} had in the first steps.",
        "A call that is not run costs nothing if the reward does not ask for its result.",
        "Read these episodes. Penalise such turns (failures.parse=penalise:-1), or pay only for what tools find out.",
        [one.episode_id for one in shown],
    )


_TERM = "reward_term/"
_SHARE_GREW = 0.25
"""By how much the share of a term in the reward must have grown."""
_SOLVED_MORE = 0.05
_TERM_KEPT = 0.75


def reward_term_drift(context: StepContext) -> RunWarning | None:
    """One term pays for much more of the reward than at first, and nothing shows that the task is solved more often."""
    names = [name for name in context.record if name.startswith(_TERM)]
    trends = {name: trend for name in names if (trend := context.trend(name)) is not None}
    first, last = (sum(abs(trend[place]) for trend in trends.values()) for place in (0, 1))
    if len(trends) < 2 or not first or not last:
        return None
    grew = {name: abs(now) / last - abs(before) / first for name, (before, now) in trends.items()}
    name = max(grew, key=lambda one: grew[one])
    success = context.trend("success/mean")
    if success is not None:
        is_better = success[1] >= success[0] + _SOLVED_MORE
    else:  # what was earned with other terms has been given up for this one
        is_better = not any(before > 0 and now < _TERM_KEPT * before for before, now in trends.values())
    if grew[name] < _SHARE_GREW or is_better:
        return None
    before, now = trends[name]
    term = name.removeprefix(_TERM)
    beside = f"success went from {number(success[0])} to {number(success[1])}" if success else "others fell"
    most = sorted(context.report.summaries, key=lambda one: abs(one.terms.get(term, 0.0)), reverse=True)
    return context.warning(
        "reward_term_drift",
        f"The reward term {term} is {abs(now) / last:.0%} of the reward ({number(now)} an episode), and was "
        f"{abs(before) / first:.0%} in the first steps ({number(before)}); {beside}.",
        "The model may have found that this term is paid without the task being done.",
        f"Read these episodes, where it is largest. Lower the weight of {term}, cap it, or pay it only with success.",
        [one.episode_id for one in most],
    )


_FEWEST = 4
_COMMON = 0.5
_RARE, _MOSTLY = 0.5, 0.75
"""In the other episodes the phrase must be at most this much as frequent as in the best."""


def new_high_reward_phrase(context: StepContext) -> RunWarning | None:
    """Half of the best paid episodes, of several starts, share a phrase that nobody wrote in the first steps."""
    episodes = context.report.summaries
    top = best(episodes)
    if len(top) < _FEWEST or not context.first_phrases:
        return None
    names = {one.episode_id for one in top}
    others = [one for one in episodes if one.episode_id not in names]
    counts = Counter(phrase for one in top for phrase in one.phrases - context.first_phrases)
    elsewhere = Counter(phrase for one in others for phrase in one.phrases)
    for phrase, count in counts.most_common():
        if count < max(_FEWEST, _COMMON * len(top)):
            return None
        shown = [one for one in top if phrase in one.phrases]
        several = len({one.group_id for one in shown}) > 1
        if several and elsewhere[phrase] / len(others) <= _RARE * count / len(top):
            return context.warning(
                "new_high_reward_phrase",
                f'{count} of the {len(top)} best paid episodes, from several starts, have "{phrase}", which is in '
                f"{elsewhere[phrase]} of the {len(others)} others and was in none of the first steps.",
                "It may be a skill, or a text that is paid whatever the task is.",
                "Read these episodes. If the phrase has nothing to do with the task, look at why it is paid.",
                [one.episode_id for one in shown],
            )
    return None


def paid_without_skill(context: StepContext) -> RunWarning | None:
    """Most of the best paid episodes, of several starts, follow one rule that needs no skill, and are no successes."""
    top = best(context.report.summaries)
    counts = Counter(one.rule for one in top if one.rule and not one.success)
    if len(top) < _FEWEST or not counts:
        return None
    [(rule, count)] = counts.most_common(1)
    shown = [one for one in top if one.rule == rule and not one.success]
    if count < max(_FEWEST, _MOSTLY * len(top)) or len({one.group_id for one in shown}) == 1:
        return None
    return context.warning(
        "paid_without_skill",
        f"{count} of the {len(top)} best paid episodes, from several starts, say no more than this: {rule}.",
        "What is paid without skill is learned first, and then there is nothing left to learn.",
        "Read these episodes. `turnsmith check --audit` tells what else is paid so, and which line of the reward does.",
        [one.episode_id for one in shown],
    )


_PAID = {"reward_term/judge": "The judge's score", "reward/mean": "The reward"}
_SOLVED_LESS = 0.05
_ROSE = 0.1


def success_against_reward(context: StepContext) -> RunWarning | None:
    """The judge, or the reward as a whole, is more content than at first, and fewer episodes succeed."""
    success = context.trend("success/mean")
    if success is None or success[1] > success[0] - _SOLVED_LESS:
        return None
    found = {
        words: paid
        for name, words in _PAID.items()
        if (paid := context.trend(name)) is not None and paid[1] > paid[0] + _ROSE * max(abs(paid[0]), abs(paid[1]))
    }
    if not found:
        return None
    words, paid = next(iter(found.items()))
    fooled = [one for one in context.report.summaries if one.success is False]
    fooled.sort(key=lambda one: one.reward, reverse=True)
    return context.warning(
        "success_against_reward",
        f"{words} rose from {number(paid[0])} to {number(paid[1])}, while success fell from {number(success[0])} to "
        f"{number(success[1])}.",
        "What is paid is no longer what you want: the longer it trains, the more it is so.",
        "Read these episodes, the best paid without success. Stop, fix the judge's rubric or the reward, and go on "
        "from a checkpoint before it began.",
        [one.episode_id for one in fooled],
    )
