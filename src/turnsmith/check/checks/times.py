"""How long calls of the environment take, against their time limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import Replay, scripted_episodes, starts_of
from turnsmith.check.subject import Subject
from turnsmith.text import duration
from turnsmith.trajectory import Outcome, Trajectory

_NEAR = 0.5
"""A call that takes this share of its limit on an idle machine will exceed it on a busy one."""
_TOOL_SECONDS = 30.0
_SLOW, _OVERLAP = 0.02, 0.7


async def check_times(subject: Subject) -> Finding:
    """Time reset, step and tools in scripted episodes, one after another; then see whether steps overlap."""
    if subject.is_agent:
        return Finding("skipped", "The whole episode of an agent is one call.")
    known = await scripted_episodes(subject)
    starts, resets, played, alone = starts_of(subject, known), list[float](), list[Trajectory](), 0.0
    for start in starts:
        began, asked = time.perf_counter(), list[float]()

        async def note(episode_id: str, turn: int, asked: list[float] = asked) -> None:
            asked.append(time.perf_counter())

        played += await subject.play(Replay(known, subject.chat.close_id, note), [start])
        alone += time.perf_counter() - began
        resets.append((asked[0] if asked else time.perf_counter()) - began)
    steps = [turn.step_seconds for episode in played for turn in episode.turns]
    tools = [call["seconds"] for episode in played for call in _calls(episode)]
    limit = subject.environment.call_seconds
    times = {"reset": (resets, limit), "step": (steps, limit), "tools": (tools, _TOOL_SECONDS)}
    told = ", ".join(f"{name} {_quantiles(values)}" for name, (values, _) in times.items() if values)
    slow = [episode for episode in [*known, *played] if episode.outcome is Outcome.ENVIRONMENT_TIMEOUT]
    if slow:
        fix = "Make the call faster, or raise environment.call_seconds."
        return Finding("failed", f"A call timed out: {slow[0].error} {told}.", fix, slow[:1])
    for name, (values, allowed) in times.items():
        if values and max(values) > _NEAR * allowed:
            saw = f"{name} took up to {duration(max(values))}, and its limit is {duration(allowed)} ({told})."
            fix = "Make it faster, or raise environment.call_seconds (of a tool: its time_limit)."
            return Finding("failed", saw, fix, played[:1])
    longest = max((episode.seconds for episode in played), default=0.0)
    if longest > _NEAR * subject.config.inference.max_seconds:
        allowed = duration(subject.config.inference.max_seconds)
        saw = f"An episode took {duration(longest)} without a model, and inference.max_seconds is {allowed}."
        return Finding("failed", saw, "Raise inference.max_seconds, or make the environment faster.", played[:1])
    if not steps or sum(steps) / len(steps) < _SLOW:
        return Finding("passed", f"50th and 99th percentile: {told}.")
    return await _overlap(subject, known, alone, told)


async def _overlap(subject: Subject, known: list[Trajectory], alone: float, told: str) -> Finding:
    """Whether calls that take time run beside each other; one after another, the episodes took `alone` seconds."""
    began = time.perf_counter()
    await subject.play(Replay(known, subject.chat.close_id), starts_of(subject, known), concurrency=len(known))
    together = time.perf_counter() - began
    if together > _OVERLAP * alone:
        saw = f"{len(known)} episodes at once took {duration(together)}, one after another {duration(alone)} ({told})."
        fix = "Do not block: plain methods run in threads of their own, and an `async` one has to `await`, not sleep."
        return Finding("warning", saw, fix)
    return Finding("passed", f"50th and 99th percentile: {told}.")


def _calls(episode: Trajectory) -> list[dict[str, Any]]:
    return [call for info in episode.infos for call in info.get("tool_calls", ())]


def _quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    half, most = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{1000 * half:.3g} and {1000 * most:.3g} ms"


TIMES = Check(
    "times against limits",
    "Times reset, step and tools in scripted episodes, and sees whether slow steps run beside each other.",
    "A call that exceeds its limit loses the episode; steps that block each other leave the GPUs idle.",
    check_times,
)
