"""The environment's own solution gets the highest reward."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.panel import convene
from turnsmith.check.subject import Subject

NO_SOLVE = "The environment has no `solve`, so nobody knows what a right answer gets."


async def check_ceiling(subject: Subject) -> Finding:
    """Play the oracle, and compare its rewards with the declared maximum and with each other."""
    panel = await convene(subject)
    if panel.oracle is None:
        return Finding("skipped", NO_SOLVE, "Write `solve`: it returns the next action, or all of them.")
    episodes = panel.oracle.episodes
    failed = [episode for episode in episodes if not episode.is_counted]
    if failed:
        return Finding("failed", f"The solution of {len(failed)} starts ends in a fault: {failed[0].error}", "", failed)
    unwritten = [
        episode
        for task, episode in zip(panel.oracle.tasks, episodes, strict=True)
        if any(said != meant for said, meant in zip(episode.actions, task.solution or (), strict=False))
    ]
    if unwritten:
        saw = f"{len(unwritten)} of {len(episodes)} solutions cannot be written: they have characters that the \
tokenizer lacks, or more tokens than inference.max_tokens allows."
        return Finding("failed", saw, "Raise inference.max_tokens, or take another model.", unwritten)
    unsolved = [episode for episode in episodes if episode.infos and episode.infos[-1].get("success") is False]
    highest = panel.declared[1] if panel.declared else max(panel.oracle.rewards)
    low = [episode for episode in episodes if episode.total_reward < highest - 1e-6 * max(1.0, abs(highest))]
    if unsolved or (low and panel.declared):
        wrong = unsolved or low
        rewards = f"{min(panel.oracle.rewards):g} to {max(panel.oracle.rewards):g}"
        saw = f"{len(wrong)} of {len(episodes)} starts are not solved by their own solution: rewards of {rewards}, \
where {highest:g} is the most."
        fix = "Such a start cannot be solved, its answer is wrong, or the reward does not accept it: look at the \
episodes. Or reward_range declares too much."
        return Finding("failed", saw, fix, wrong)
    if panel.declared is None and panel.oracle.mean <= panel.bottom:
        saw = f"The solutions of {len(episodes)} starts get {panel.oracle.mean:g} on average, no more than no skill."
        return Finding(
            "failed", saw, "The reward does not accept them, or they are wrong: look at the episodes.", low or episodes
        )
    return Finding("passed", f"The solutions of {len(episodes)} starts get {panel.oracle.mean:g} on average.")


CEILING = Check(
    "ceiling",
    "Plays the environment's own solution, `solve`, from each start.",
    "A start that cannot be solved gives no signal, and hides what the model has learned.",
    check_ceiling,
    audit=True,
)
