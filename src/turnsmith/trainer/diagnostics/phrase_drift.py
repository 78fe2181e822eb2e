"""Transcripts that are paid best and look alike, in a way that was not there in the first steps."""

from __future__ import annotations

from collections import Counter

from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_summary import best
from turnsmith.trainer.diagnostics.context import StepContext

_FEWEST = 4
_COMMON = 0.5
_RARE = 0.5
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
