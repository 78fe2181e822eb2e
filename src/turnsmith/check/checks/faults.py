"""A fault is recorded as one; it never becomes a reward."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from turnsmith.check.comparison import first_difference
from turnsmith.check.finding import Check, Finding
from turnsmith.check.planting import Broken, Fault, Planted, held_objects, here, own_methods
from turnsmith.check.scripted import Replay, scripted_episodes, starts_of
from turnsmith.check.subject import Subject
from turnsmith.env.isolation.settings import HERE, PROCESSES
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.rewards.reward_function import RewardFailure, RewardFunction, compute_score, function_name
from turnsmith.tools.tool import tool_methods
from turnsmith.trajectory import Trajectory

_EPISODES = 3
_MOST_FAULTS = 24
_REWARD_SECONDS = 30.0


async def check_faults(subject: Subject) -> Finding:
    """Plant faults in the environment, one at a time, and see whether its episodes end in a fault."""
    if subject.is_agent:
        return Finding("skipped", "An agent is run by its own code.")
    if any(spec.mode not in (*HERE, *PROCESSES) for spec in subject.environment.each()):
        return Finding("skipped", "The environment runs on another machine.")
    planted, hidden = 0, list[tuple[str, Trajectory, Trajectory]]()
    for spec in subject.environment.each():
        async for fault, before, after in _struck(subject, spec):
            planted += 1
            if not _is_recorded(after):
                hidden.append((fault.where, before, after))
    if subject.reward_fn is not None:
        fault, trouble = await _reward_function(subject, subject.reward_fn)
        if trouble is not None:
            return trouble
        planted += fault.times > 0
    if not planted:
        return Finding("skipped", "No fault could be planted: no episode used what was made to raise.")
    if not hidden:
        return Finding("passed", f"{planted} planted faults were all recorded as faults.")
    where, before, after = next((one for one in hidden if first_difference(*one[1:])), hidden[0])
    changed = first_difference(before, after)
    saw = (
        f"{len(hidden)} of {planted} planted faults were hidden: an exception in {where} was caught, and the episode "
        f"ended as {after.outcome} with reward {after.total_reward:g}."
    )
    fix = "Let exceptions out of `step`, or catch only those that the model's text can cause (ValueError, KeyError)."
    return Finding("failed" if changed else "warning", saw, fix, (after,))


async def _struck(subject: Subject, spec: EnvironmentSpec) -> AsyncIterator[tuple[Fault, Trajectory, Trajectory]]:
    """Each fault that an episode ran into, with the episode without it and with it."""
    local = replace(subject, environment=here(spec), engine=None, episodes=_EPISODES, cache={}, reward_fn=None)
    known = await scripted_episodes(local)
    methods = ["reset", "step", *own_methods(spec.load()), *tool_methods(spec.load())]
    plants = [{"method": name} for name in dict.fromkeys(methods)]
    plants += [{"attribute": name} for name in await _held(local)]
    for plant in plants[:_MOST_FAULTS]:
        [name] = plant.values()
        fault = Fault(f"{spec.name}.{name}")
        broken = Planted(here(spec), fault, **plant).spec_with_it()
        for before, start in zip(known, starts_of(local, known), strict=True):
            replay = Replay(known, subject.chat.close_id)
            [after] = await local.play(replay, [start], rollout=local.rollout(environment=broken))
            if fault.times:
                yield fault, before, after
                break


async def _held(subject: Subject) -> list[str]:
    """The objects that the environment holds after `reset`."""
    host, [start] = EnvironmentHost(subject.environment), subject.starts(1)
    try:
        await host.reset(start.seed, start.task)
        return held_objects(subject.environment, host.environment)
    finally:
        await host.close()


def _is_recorded(episode: Trajectory) -> bool:
    """Whether the episode ended in a fault, or the model was told that a tool failed, which is recorded too."""
    calls: list[dict[str, Any]] = [call for info in episode.infos for call in info.get("tool_calls", ())]
    is_told = any("failure" in call for call in calls)
    return not episode.is_counted or is_told


async def _reward_function(subject: Subject, function: RewardFunction) -> tuple[Fault, Finding | None]:
    """Give the reward function an episode of which any use raises."""
    fault = Fault("the episode")
    broken: Any = Broken(fault)
    try:
        value = await compute_score(function, broken, broken, _REWARD_SECONDS)
    except RewardFailure:
        return fault, None
    if not fault.times:
        return fault, None
    saw = f"An exception inside the reward function {function_name(function)} was caught, and it returned {value:g}."
    fix = "Let it raise: an episode that cannot be scored is retried or left out."
    return fault, Finding("failed", saw, fix)


FAULTS = Check(
    "faults are not rewards",
    "Makes reset, step, tools, the environment's own methods and the objects that it holds raise, one at a time.",
    "An exception that is caught and scored as 0 trains the model away from what it did before a server failed.",
    check_faults,
)
