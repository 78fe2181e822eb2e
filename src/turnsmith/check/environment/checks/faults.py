"""Does the environment take any text that a model writes, and is a fault never scored as a reward?"""

from __future__ import annotations

import json
import math
import secrets
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnsmith.check.environment.checks.chat import offered_definitions, sample_arguments
from turnsmith.check.environment.planting import Broken, Fault, Planted, held_objects, here, own_methods
from turnsmith.check.environment.scripted import Replay, first_difference, scripted_episodes, scripted_starts, starts_of
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.rewards.reward_function import RewardFailure, RewardFunction, compute_score, function_name
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.tools.tool import tool_methods
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


@environment_check("any-text", "any text is answered")
async def check_any_text(subject: Subject) -> Finding:
    """Play an episode with each of 15 odd texts: empty, very long, numbers, JSON, other scripts.

    An untrained model writes anything; each crash costs an episode, and groups without them are biased.
    """
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


_EPISODES = 3
_MOST_FAULTS = 24
_REWARD_SECONDS = 30.0


@environment_check("faults", "faults are not rewards")
async def check_faults(subject: Subject) -> Finding:
    """Make reset, step, tools, the environment's own methods and the objects that it holds raise, one at a time.

    An exception that is caught and scored as 0 trains the model away from what it did before a server failed.
    """
    if subject.is_agent:
        return Finding("skipped", "An agent is run by its own code.")
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
    """Each fault that an episode met, with that episode before and after the fault was planted."""
    local = replace(subject, environment=here(spec), engine=None, episodes=_EPISODES, played={}, reward_fn=None)
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
    """Give the reward function an episode that raises whenever it is used."""
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


_CODE = {"code", "script", "program", "source", "command", "cmd", "bash", "shell", "python", "sql"}

_SUM_IS = "88187"
_PROBES = {
    "print(open({!r}).read())": "print(48271 + 39916)",
    "cat {}": "echo $((48271 + 39916))",
    "SELECT content FROM read_text({!r})": "SELECT 48271 + 39916",  # DuckDB
    "SELECT pg_read_file({!r})": "SELECT 48271 + 39916",
}
"""Code that reads a file, and code that prints a sum, which shows that a tool runs such code at all."""


@environment_check("sandbox", "code tools are closed")
async def check_code_tools(subject: Subject) -> Finding:
    """Ask every tool that takes code for the content of a file outside.

    Code of a model that is being trained to get rewards will find the answers, the grader or your keys.
    """
    if subject.is_agent:
        return Finding("skipped", "An agent brings its own tools.")
    found = [(spec, *one) for spec in subject.environment.each() for one in await _code_tools(subject, spec)]
    if not found:
        return Finding("skipped", "There is no tool that takes code.")
    secret, ran = secrets.token_hex(16), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outside.txt"
        file.write_text(secret)
        for spec, tool, arguments, argument in found:
            for probe, code in _PROBES.items():
                text = probe.format(str(file))
                episodes = [
                    await _play(subject, spec, {"name": tool, "arguments": {**arguments, argument: one}})
                    for one in (code, text)
                ]
                ran += [tool] * _shows(episodes[0], _SUM_IS)
                if _shows(episodes[1], secret):
                    fix = "Run code of the model with turnsmith's PythonTool or run_python, which have a sandbox."
                    return Finding("failed", f"The tool {tool} read a file of this machine: {text}", fix, episodes[1:])
    if not ran:
        names = ", ".join(tool for _, tool, *_ in found)
        return Finding("skipped", f"No sum of two numbers, in Python, SQL or a shell, was computed by {names}.")
    return Finding("passed", f"Code given to {', '.join(dict.fromkeys(ran))} did not reach a file outside.")


async def _code_tools(subject: Subject, spec: EnvironmentSpec) -> list[tuple[str, dict[str, Any], str]]:
    """Tools with an argument for code: their names, the arguments that they need, and the name of that argument."""
    return [
        (tool.name, {one: value for one, value in sample_arguments(tool.parameters).items() if one in needed}, name)
        for tool in await offered_definitions(subject, spec)
        for needed in [tool.parameters.get("required", ())]
        for name in tool.parameters.get("properties", {})
        if name in _CODE
    ]


def _shows(episode: Trajectory, text: str) -> bool:
    """Whether the episode shows the model this text, not counting what the model wrote."""
    return any(text in str(message.get("content")) for message in episode.messages if message["role"] != "assistant")


async def _play(subject: Subject, spec: EnvironmentSpec, call: dict[str, Any]) -> Trajectory:
    reply = f"<tool_call>{json.dumps(call)}</tool_call>"
    rollout = subject.rollout(environment=spec, parser=FunctionCallingParser(), reward_fn=None)
    limits = replace(rollout.limits, turns=1, prompt_tokens=10**9, tokens=10**6)
    rollout = replace(rollout, limits=limits, sampling=replace(rollout.sampling, max_tokens=10**6))
    [episode] = await subject.play(lambda turn, prompt: reply, scripted_starts(subject)[:1], rollout=rollout)
    return episode
