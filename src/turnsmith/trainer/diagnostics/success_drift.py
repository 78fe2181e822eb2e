"""A reward or a judge's score that rises while success falls."""

from __future__ import annotations

from turnsmith.records.run_warnings import RunWarning
from turnsmith.text import number
from turnsmith.trainer.diagnostics.context import StepContext

_PAID = {"reward_term/judge": "The judge's score", "reward/mean": "The reward"}
_FELL = 0.05
_ROSE = 0.1


def success_against_reward(context: StepContext) -> RunWarning | None:
    """The judge, or the reward as a whole, is more content than at first, and fewer episodes succeed."""
    success = context.trend("success/mean")
    if success is None or success[1] > success[0] - _FELL:
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
