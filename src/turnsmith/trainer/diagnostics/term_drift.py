"""A reward term that takes over: compared with the first steps."""

from __future__ import annotations

from turnsmith.records.run_warnings import RunWarning
from turnsmith.text import number
from turnsmith.trainer.diagnostics.context import StepContext

_PREFIX = "reward_term/"
_GREW = 0.25
"""By how much the share of a term in the reward must have grown."""
_ROSE = 0.05
_FELL = 0.75


def reward_term_drift(context: StepContext) -> RunWarning | None:
    """One term pays for much more of the reward than at first, and nothing shows that the task is solved more often."""
    names = [name for name in context.record if name.startswith(_PREFIX)]
    trends = {name: trend for name in names if (trend := context.trend(name)) is not None}
    first, last = (sum(abs(trend[place]) for trend in trends.values()) for place in (0, 1))
    if len(trends) < 2 or not first or not last:
        return None
    grew = {name: abs(now) / last - abs(before) / first for name, (before, now) in trends.items()}
    name = max(grew, key=lambda one: grew[one])
    success = context.trend("success/mean")
    if success is not None:
        is_better = success[1] >= success[0] + _ROSE
    else:  # what was earned with other terms has been given up for this one
        is_better = not any(before > 0 and now < _FELL * before for before, now in trends.values())
    if grew[name] < _GREW or is_better:
        return None
    before, now = trends[name]
    term = name.removeprefix(_PREFIX)
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
