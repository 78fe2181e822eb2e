"""Whatever the model writes, the environment answers."""

from __future__ import annotations

import math
from dataclasses import replace

from turnsmith.check.finding import Check, Finding
from turnsmith.check.subject import Subject
from turnsmith.trajectory import Trajectory

TEXTS = (
    "",
    " \n\n ",
    "0",
    "-1",
    "99999999999999999999999999",
    "nan",
    "null",
    "yes",
    "the quick brown fox " * 40,
    "é ß 漢字 🙂 \u202e",
    '{"a": [1, {"b": null}]}',
    "<answer></answer>",
    "1/0",
    "%s {0} \\",
    "a b c d e f g",
)
_MOST_SHOWN = 3


async def check_any_text(subject: Subject) -> Finding:
    """Play an episode with each odd text, given in every turn."""
    if subject.is_agent:
        return Finding("skipped", "An agent reads the model's texts itself.")
    starts = [replace(start, episode_id=f"text-{number}") for number, start in enumerate(subject.starts(len(TEXTS)))]
    played: list[Trajectory] = []
    for start, text in zip(starts, TEXTS, strict=True):
        played += await subject.play(lambda turn, prompt, text=text: text, [start])
    failed = [episode for episode in played if not episode.is_counted]
    if failed:
        text = failed[0].actions[-1] if failed[0].actions else ""
        saw = (
            f"{len(failed)} of {len(TEXTS)} odd texts ended the episode in a fault; the first, {text[:40]!r}: "
            f"{failed[0].error}"
        )
        fix = "Let `step` take any text: say what was wrong in the observation, and give the reward that this deserves."
        return Finding("failed", saw, fix, failed[:_MOST_SHOWN])
    huge = [episode for episode in played if not all(map(math.isfinite, episode.rewards))]
    if huge:
        return Finding("failed", "A reward is not a finite number.", "Return finite rewards.", huge[:_MOST_SHOWN])
    given = sum(text in episode.actions for text, episode in zip(TEXTS, played, strict=True))
    whole = "" if given == len(TEXTS) else f", {given} of them whole"
    return Finding("passed", f"{len(TEXTS)} odd texts were all answered{whole}.")


ANY_TEXT = Check(
    "any text is answered",
    "Plays an episode with each of 15 odd texts: empty, very long, numbers, JSON, other scripts.",
    "An untrained model writes anything; each crash costs an episode, and groups without them are biased.",
    check_any_text,
)
