"""With an asynchronous schedule: how many episodes would take longer than max_staleness allows."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import model_episodes
from turnsmith.check.subject import Subject

_MANY = 0.1
_MOST_SHOWN = 3


async def check_staleness(subject: Subject) -> Finding:
    """Compare the length of the model's episodes with the typical one, which is about what a step takes."""
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
        what = "waits for them" if training.stragglers == "wait" else "drops them, which favours short episodes"
        saw = f"{told}: with max_staleness={training.max_staleness}, training {what}."
        fix = "Raise training.max_staleness, or limit inference.max_episode_tokens."
        return Finding("warning", saw, fix, long[:_MOST_SHOWN])
    return Finding("passed", f"{told}.")


STALENESS = Check(
    "episode length and staleness",
    "Compares the tokens of the model's episodes with the typical one.",
    "Episodes that outlive max_staleness hold up every step, or are dropped and the short ones win.",
    check_staleness,
)
