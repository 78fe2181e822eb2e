"""Answers that deserve nothing get nothing."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.panel import ONLY_FAULTS, convene
from turnsmith.check.subject import Subject

_TOO_MUCH, _ALL = 0.75, 0.95
"""Shares of what a right answer gets. Half of it is no fault: a question may have two answers."""


async def check_floor(subject: Subject) -> Finding:
    """Play without any skill, and compare with what a right answer gets."""
    panel = await convene(subject)
    if not panel.floor:
        return Finding("skipped", ONLY_FAULTS)
    means = ", ".join(f"{name} {played.mean:.3g}" for name, played in panel.floor.items())
    if panel.top is None:
        saw = f"Mean rewards: {means}. There is no `solve` and no reward_range to compare them with."
        return Finding("skipped", saw, "Write `solve`, or set reward_range on the environment's class.")
    name, best = max(panel.floor.items(), key=lambda item: item[1].mean)
    span = panel.top - panel.bottom
    if span <= 0 and best.mean <= 0:
        return Finding("skipped", f"Nothing is paid, not even a right answer. Mean rewards: {means}.")
    share = (best.mean - panel.bottom) / span if span > 0 else 1.0
    saw = f"Mean rewards: {means}; a right answer gets {panel.top:.3g}."
    if share < _TOO_MUCH:
        return Finding("passed", saw)
    fix = (
        f"{name.capitalize()} is paid like a right answer: look at its episodes. A task whose answer is nearly always \
the same teaches that answer."
    )
    return Finding("failed" if share >= _ALL else "warning", saw, fix, best.best)


FLOOR_CHECK = Check(
    "floor",
    "Plays silence, a constant answer, random words and the prompt itself.",
    "What is paid without skill is what the model learns first, and then there is nothing left to learn.",
    check_floor,
    audit=True,
)
