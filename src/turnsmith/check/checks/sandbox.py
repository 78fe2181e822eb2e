"""A tool that runs code of the model cannot reach the files of this machine."""

from __future__ import annotations

import json
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path

from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import scripted_starts
from turnsmith.check.subject import Subject
from turnsmith.env.host import open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Trajectory

_CODE = {"code", "script", "program", "source", "command", "cmd", "bash", "shell"}


async def check_code_tools(subject: Subject) -> Finding:
    """Ask every tool that takes code for the content of a file outside."""
    if subject.is_agent:
        return Finding("skipped", "An agent brings its own tools.")
    found = [(spec, *one) for spec in subject.environment.each() for one in await _code_tools(subject, spec)]
    if not found:
        return Finding("skipped", "There is no tool that takes code.")
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outside.txt"
        file.write_text(secret)
        for spec, tool, argument in found:
            for text in (f"print(open({str(file)!r}).read())", f"cat {file}"):
                call = json.dumps({"name": tool, "arguments": {argument: text}})
                episode = await _play(subject, spec, f"<tool_call>{call}</tool_call>")
                if any(secret in str(message.get("content")) for message in episode.messages):
                    fix = "Run code of the model with turnsmith's PythonTool or run_python, which have a sandbox."
                    return Finding("failed", f"The tool {tool} read a file of this machine: {text}", fix, (episode,))
    names = ", ".join(tool for _, tool, _ in found)
    return Finding("passed", f"Code given to {names} did not reach a file outside.")


async def _code_tools(subject: Subject, spec: EnvironmentSpec) -> list[tuple[str, str]]:
    """Tools with an argument for code, with its name."""
    host, [start] = open_host(spec), subject.starts(1)
    try:
        await host.reset(start.seed, start.task)
        tools = ToolRegistry([*(subject.tools or ()), *host.tools()]).definitions()
    finally:
        await host.close()
    return [(tool.name, name) for tool in tools for name in tool.parameters.get("properties", {}) if name in _CODE]


async def _play(subject: Subject, spec: EnvironmentSpec, reply: str) -> Trajectory:
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
