"""Lengths and unreadable tool calls by quantile, compared with the first steps."""

from __future__ import annotations

from turnsmith.records.run_warnings import RunWarning
from turnsmith.text import number
from turnsmith.trainer.diagnostics.context import StepContext

_GREW, _FELL = 2.0, 0.5
_ROSE = 0.25
_SHARES = {"unreadable/best": "the best paid quarter of episodes", "unreadable/all": "the episodes"}


def length_drift(context: StepContext) -> RunWarning | None:
    """The longest tenth has doubled though the mean has not, or half of the episodes are half as long for no reward."""
    long, middle, mean = (context.trend(name) for name in ("length/p90", "length/p50", "tokens/response"))
    reward = context.trend("reward/mean")
    if long is None or middle is None:
        return None
    by_length = sorted(context.report.summaries, key=lambda one: one.tokens)
    if long[0] > 0 and long[1] >= _GREW * long[0] and not (mean and mean[1] >= _GREW * mean[0]):
        what = (
            f"The longest tenth of episodes has {number(long[1])} sampled tokens or more, {number(long[0])} in the "
            f"first steps; half of them have at most {number(middle[1])}, as against {number(middle[0])}."
        )
        shown = by_length[::-1]
    elif middle[1] <= _FELL * middle[0] and reward is not None and reward[1] <= reward[0]:
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
        if (trend := context.trend(name)) is not None and trend[1] >= trend[0] + _ROSE
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
