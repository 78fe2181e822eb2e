"""A tool that runs code of the model cannot reach the files of this machine."""

from __future__ import annotations

import json
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnsmith.check.checks.call_format import sample_arguments
from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import scripted_starts
from turnsmith.check.subject import Subject
from turnsmith.env.host import open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Trajectory

_CODE = {"code", "script", "program", "source", "command", "cmd", "bash", "shell", "python", "sql"}

_SUM_IS = "88187"
_PROBES = {
    "print(open({!r}).read())": "print(48271 + 39916)",
    "cat {}": "echo $((48271 + 39916))",
    "SELECT content FROM read_text({!r})": "SELECT 48271 + 39916",  # DuckDB
    "SELECT pg_read_file({!r})": "SELECT 48271 + 39916",
}
"""How to read a file, and the sum that shows that a tool runs such code at all."""


async def check_code_tools(subject: Subject) -> Finding:
    """Ask every tool that takes code for the content of a file outside."""
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
    host, [start] = open_host(spec), subject.starts(1)
    try:
        await host.reset(start.seed, start.task)
        tools = ToolRegistry([*(subject.tools or ()), *host.tools()]).definitions()
    finally:
        await host.close()
    return [
        (tool.name, {one: value for one, value in sample_arguments(tool.parameters).items() if one in needed}, name)
        for tool in tools
        for needed in [tool.parameters.get("required", ())]
        for name in tool.parameters.get("properties", {})
        if name in _CODE
    ]


def _shows(episode: Trajectory, text: str) -> bool:
    """Whether the model is shown a text that it did not write."""
    return any(text in str(message.get("content")) for message in episode.messages if message["role"] != "assistant")


async def _play(subject: Subject, spec: EnvironmentSpec, call: dict[str, Any]) -> Trajectory:
    reply = f"<tool_call>{json.dumps(call)}</tool_call>"
    rollout = subject.rollout(environment=spec, parser=FunctionCallingParser(), reward_fn=None)
    limits = replace(rollout.limits, turns=1, prompt_tokens=10**9, tokens=10**6)
    rollout = replace(rollout, limits=limits, sampling=replace(rollout.sampling, max_tokens=10**6))
    [episode] = await subject.play(lambda turn, prompt: reply, scripted_starts(subject)[:1], rollout=rollout)
    return episode


SANDBOX = Check(
    "code tools are closed",
    "Asks every tool that takes code for the content of a file outside its sandbox.",
    "Code of a model that is being trained to get rewards will find the answers, the grader or your keys.",
    check_code_tools,
)
