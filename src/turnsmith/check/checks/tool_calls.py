"""The model calls the tools that it is offered, in the format that is read."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import model_episodes
from turnsmith.check.subject import Subject
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.tools.tool import tool_methods
from turnsmith.trajectory import Trajectory

_FORMATS = ("function_calling", "json", "react")
_HALF = 0.5
_MOST_SHOWN = 3


async def check_tool_calls(subject: Subject) -> Finding:
    """Look for tool calls in the model's episodes."""
    names = offered_tools(subject)
    if not names:
        return Finding("skipped", "There are no tools.")
    if subject.engine is None:
        return Finding("skipped", "Needs the model: pass --model.")
    episodes = await model_episodes(subject)
    report = report_of(episodes)
    if not report.tool_calls:
        return _no_call(subject, episodes, names, report.format_problems)
    told = f"{report.tool_calls} calls, {report.tool_errors} refused or failed, {report.format_problems} not readable"
    if report.format_problems > _HALF * (report.tool_calls + report.format_problems):
        fix = "Show a call in the system prompt, or set inference.tool_format to the format that the model knows."
        return Finding("warning", f"Most calls cannot be read: {told}.", fix, _with_problem(episodes))
    if report.tool_errors > _HALF * report.tool_calls:
        return Finding("warning", f"Most calls fail: {told}.", "Look at the tools' errors.", episodes[:_MOST_SHOWN])
    return Finding("passed", f"{len(episodes)} episodes: {told}.")


def _no_call(subject: Subject, episodes: list[Trajectory], names: list[str], problems: int) -> Finding:
    for name in _FORMATS:
        parser = parser_for(name)
        found = [
            e for e in episodes if any(c.name in names for action in e.actions for c in parser.parse(action).calls)
        ]
        if name != subject.config.inference.tool_format and found:
            saw = f"{len(found)} of {len(episodes)} episodes have calls in the format {name}, and none was read."
            return Finding("failed", saw, f"Set inference.tool_format={name}.", found[:_MOST_SHOWN])
    if not any(episode.is_counted for episode in episodes):
        return Finding("skipped", "No episode of the model ended without a fault.")
    success = EvaluationResult(episodes, subject.success_reward).success.value
    saw = (
        f"Not one of {len(episodes)} episodes called a tool ({', '.join(names[:4])}); {problems} calls could not be "
        f"read; success {success:.0%}."
    )
    fix = "Show a call in the system prompt, set inference.tool_format=native, or take a model that can call tools."
    if success > _HALF:
        fix = "The reward does not need the tools: pay for what only they can find out, or leave them out."
    return Finding("warning", saw, fix, _with_problem(episodes) or episodes[:_MOST_SHOWN])


def _with_problem(episodes: list[Trajectory]) -> list[Trajectory]:
    return [e for e in episodes if any("format_problem" in info for info in e.infos)][:_MOST_SHOWN]


def offered_tools(subject: Subject) -> list[str]:
    """The names of the tools that episodes offer."""
    own = [name for spec in subject.environment.each() for name in tool_methods(spec.load())]
    return [*(subject.tools.names if subject.tools is not None else ()), *own]


TOOL_CALLS = Check(
    "tools are called",
    "Looks for tool calls in the model's episodes, and for calls in a format that is not read.",
    "Rewards can rise for weeks without one tool call, when calls are not parsed or not needed.",
    check_tool_calls,
)
