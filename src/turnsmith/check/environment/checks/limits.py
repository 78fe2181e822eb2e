"""Do episodes stay within the limits on time, tokens and what a machine has?"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from turnsmith.check.environment.opening import measured
from turnsmith.check.environment.scripted import (
    NO_TURN,
    Replay,
    model_episodes,
    plausible_reply,
    scripted_episodes,
    starts_of,
)
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.text import duration
from turnsmith.trajectory import Outcome, Trajectory

MOST = 64
"""Largest number of episodes at once: more would only take longer."""
_MOST_SHOWN = 3
_SETTLE_SECONDS = 0.2
_PROC = Path("/proc")


@environment_check("many-at-once", "many at once, nothing left")
async def check_many_at_once(subject: Subject) -> Finding:
    """Play a batch of training at once, twice, and count what the second time leaves; a third time if it left any.

    Failed resets cost most of a batch, and what each episode leaves stops a run after hours.
    """
    if subject.is_agent:
        return Finding("skipped", "Agents are run by `turnsmith eval --concurrency`.")
    if not any(episode.is_counted for episode in await scripted_episodes(subject)):
        return Finding("skipped", NO_TURN)
    number = max(2, min(subject.config.training.batch_size, MOST))
    starts = subject.starts(number)
    played = list(await subject.play(plausible_reply, starts, concurrency=number))
    await asyncio.sleep(_SETTLE_SECONDS)

    async def left_behind() -> dict[str, int]:
        # turnsmith's own threads grow with the calls that happen to be busy at once; an episode's are left each time.
        before = Usage.now()
        played.extend(await subject.play(plausible_reply, starts, concurrency=number))
        await asyncio.sleep(_SETTLE_SECONDS)
        return {name: count for name, count in Usage.now().grown(before).items() if count >= max(2, number // 4)}

    left = await left_behind()
    if left:
        left = {name: count for name, count in (await left_behind()).items() if name in left}
    failed = [episode for episode in played if not episode.is_counted]
    if failed:
        saw = f"{len(failed)} of {len(played)} episodes failed, {number} at once. The first error: {failed[0].error}"
        fix = "Find what they compete for (a port, a file, sessions, memory), or lower training.batch_size."
        return Finding("failed", saw, fix, failed[:_MOST_SHOWN])
    if left:
        counts = " and ".join(f"{count} {name}" for name, count in left.items())
        saw = f"{number} episodes left {counts} behind after they were closed."
        return Finding("failed", saw, "Release them in `close`, which is called after every episode.", played[:1])
    return Finding("passed", f"{number} episodes at once, twice: none failed, and they left nothing behind.")


_NEAR = 0.5
"""A call that takes this share of its limit on an idle machine will exceed it on a busy one."""
_TOOL_SECONDS = 30.0
_SLOW, _OVERLAP = 0.02, 0.7


@environment_check("times", "times against limits")
async def check_times(subject: Subject) -> Finding:
    """Time reset, step and tools in scripted episodes, one after another; then see whether steps overlap.

    A call that exceeds its limit loses the episode; steps that block each other leave the GPUs idle.
    """
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
    """Whether slow calls run beside each other; the episodes took `alone` seconds one after another."""
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


_STARTS = 64
_MANY = 0.2


@environment_check("tokens", "tokens against limits", rehearsed=True)
async def check_tokens(subject: Subject) -> Finding:
    """Count the tokens of openings and observations with the model's tokenizer.

    A start whose prompt is too long is lost, and so is the end of an episode that runs out of tokens.
    """
    if not subject.has_tokenizer:
        return Finding("skipped", "Tokens are those of a model: pass --model.")
    if subject.is_agent:
        return Finding("skipped", "An agent decides itself what it shows the model.")
    told, long = await measured(subject, _spread(subject))
    if long is not None:
        return long
    if not told:
        return Finding("skipped", "No start opened.")
    played = await scripted_episodes(subject)
    if subject.engine is not None:
        played = [*played, *await model_episodes(subject)]
    return _observations(subject, played, told)


def _observations(subject: Subject, played: list[Trajectory], told: str) -> Finding:
    limits = subject.config.inference
    observed = sorted(length for episode in played for length in _lengths(episode))
    most = observed[min(len(observed) - 1, int(0.99 * len(observed)))] if observed else 0
    turns = min(limits.max_turns if limits.multi_turn else 1, max((episode.num_turns for episode in played), default=1))
    needed = most * (turns - 1)
    told += f"; observations at most {most}, {needed} in {turns} turns"
    budget = limits.max_episode_tokens
    cut = [episode for episode in played if episode.outcome is Outcome.TOKEN_LIMIT]
    fix = "Raise inference.max_episode_tokens, shorten observations, or allow fewer turns."
    if most >= budget:
        saw = f"One observation can have {most} tokens, and max_episode_tokens is {budget}."
        return Finding("failed", saw, fix, cut[:2])
    if needed > budget or len(cut) > _MANY * len(played):
        saw = f"{len(cut)} of {len(played)} episodes ran out of max_episode_tokens={budget}: {told}."
        return Finding("warning", saw, fix, cut[:2])
    return Finding("passed", f"Within the limits: {told}.")


def _lengths(episode: Trajectory) -> list[int]:
    """Tokens between each turn and the next."""
    turns = [turn for turn in episode.turns if not turn.branch]
    return [later.start - earlier.stop for earlier, later in pairwise(turns)]


def _spread(subject: Subject) -> list[EpisodeStart]:
    """Starts spread over the whole dataset, because long rows may come late."""
    if not subject.tasks or len(subject.tasks) <= _STARTS:
        return subject.starts(min(_STARTS, len(subject.tasks or ()) or _STARTS))
    rows = [number * len(subject.tasks) // _STARTS for number in range(_STARTS)]
    rows[-1] = len(subject.tasks) - 1
    return [EpisodeStart(f"row-{row}", f"row-{row}", subject.seed + row, dict(subject.tasks[row])) for row in rows]


@dataclass(frozen=True, slots=True)
class Usage:
    """What this process and all that it has started hold: processes, threads, open files.

    Example:
        >>> Usage.now().processes >= 1
        True
    """

    processes: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Usage:
        """Count what is held now, after garbage is collected."""
        gc.collect()
        if sys.platform != "linux":  # no /proc: processes that this one started are not counted
            return cls(1, threading.active_count(), sum(1 for _ in Path("/dev/fd").iterdir()))
        processes = _family(os.getpid())
        threads = sum(_entries(process, "task") for process in processes)
        return cls(len(processes), threads, sum(_entries(process, "fd") for process in processes))

    def grown(self, before: Usage) -> dict[str, int]:
        """By how much each count has grown."""
        names = {"processes": "processes", "threads": "threads", "open files": "files"}
        return {label: getattr(self, name) - getattr(before, name) for label, name in names.items()}


def _family(root: int) -> list[int]:
    """A process and all that it has started, also those that have ended but were never waited for."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                # The name before the last bracket may contain anything.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, left = list[int](), [root]
    while left:
        process = left.pop()
        found.append(process)
        left += children.get(process, [])
    return found


def _entries(process: int, folder: str) -> int:
    try:
        return sum(1 for _ in (_PROC / str(process) / folder).iterdir())
    except OSError:
        return 0
