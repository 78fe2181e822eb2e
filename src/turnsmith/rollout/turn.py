"""One turn of an episode: call the tools that the model asked for, or step the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.env.host import Host
from turnsmith.errors import user_failure
from turnsmith.inference.chat import Chat
from turnsmith.tools.definition import ToolCall, ToolResult
from turnsmith.tools.parsing import ActionParser, FormatProblem, ParsedAction, parse_turn
from turnsmith.tools.parsing.base import PLAIN_INPUT
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.step_result import StepResult
from turnsmith.tools.step_tool import EnvironmentStepTool
from turnsmith.tools.tool import Tool

Message = dict[str, str]


@dataclass(slots=True)
class TurnResult:
    """What the environment or the tools returned for one turn of the model."""

    messages: list[Message]
    """The messages to show the model next."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    calls: list[ToolCall] = field(default_factory=list)
    """The turn's tool calls, each with its result."""
    problem: FormatProblem | None = None
    """Why a tool call could not be parsed, if the model seems to have written one."""
    is_over_limit: bool = False
    """Whether the turn had more tool calls than the episode had left, so that none of them was run."""

    @property
    def done(self) -> bool:
        """Whether the episode ends with this turn."""
        return self.terminated or self.truncated


class EpisodeTools:
    """The tools that one episode offers: the run's, and the environment's own `@tool` methods."""

    def __init__(self, host: Host, registry: ToolRegistry | None, parser: ActionParser) -> None:
        own, given = host.tools(), list(registry or ())
        tools = [_of_episode(tool, host) for tool in given]
        if own or registry is None or tools != given:
            registry = ToolRegistry([*tools, *own])
        self.registry = registry
        self.parser = parser

    def __bool__(self) -> bool:
        return len(self.registry) > 0

    def prompt_and_schemas(self, system_prompt: str, chat: Chat) -> tuple[str, list[dict[str, Any]] | None]:
        """The system prompt, with the tools described in it unless the chat template takes their schemas."""
        if not self:
            return system_prompt, None
        definitions = self.registry.definitions()
        if self.parser.is_native and chat.renders_tools:
            return system_prompt, [definition.as_openai() for definition in definitions]
        return join_prompts(system_prompt, self.parser.instructions(definitions)), None


def _of_episode(tool: Tool, host: Host) -> Tool:
    return tool.of_episode(host, host.limit) if isinstance(tool, EnvironmentStepTool) else tool


def join_prompts(*texts: str) -> str:
    """Join the non-empty texts with a blank line."""
    return "\n\n".join(text for text in texts if text)


async def apply_action(
    action: str,
    host: Host,
    tools: EpisodeTools | None,
    *,
    ids: Sequence[int] = (),
    episode_id: str = "",
    count: Callable[[str], Sequence[int]] | None = None,
    calls_left: int | None = None,
) -> TurnResult:
    """Run the tool calls in the model's turn; if there are none, step the environment.

    Calls run one after another in the order they were written, because they may share state. A call that is a step of
    the environment adds its reward; if it ends the episode, the calls after it are not run. If a call cannot be parsed,
    the model is shown an error message and loses only that turn. If there are more calls than `calls_left`, none of
    them is run.
    """
    if not tools:
        return await _step(action, host)
    parser = tools.parser
    parsed = _parse(parser, action, ids)
    if calls_left is not None and len(parsed.calls) > calls_left:
        skipped = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
        return TurnResult([], info={"tool_calls_not_run": skipped}, is_over_limit=True)
    if parsed.calls:
        steps = await _run_calls(parsed.calls, tools.registry, episode_id, count)
        messages = [_tool_message(call, call.result) for call in parsed.calls if call.result]
        info = {name: value for step in steps for name, value in step.info.items()}
        info["tool_calls"] = [_record(call) for call in parsed.calls]
        result = TurnResult(messages, sum((step.reward for step in steps), 0.0), info=info, calls=parsed.calls)
        result.truncated = any(step.truncated for step in steps)
        result.terminated = any(step.terminated for step in steps) or (not result.truncated and await host.is_over())
    elif parsed.problem:
        result = TurnResult([])
    else:
        return await _step(parsed.text, host)
    if parsed.problem:  # other calls of the turn may have been parsed and run
        result.problem = parsed.problem
        result.messages.append({"role": "user", "content": parsed.problem.sentence})
        result.info["format_problem"] = parsed.problem.kind.value
    return result


def _parse(parser: ActionParser, action: str, ids: Sequence[int]) -> ParsedAction:
    try:
        return parse_turn(parser, action, ids)
    except Exception as error:
        raise user_failure(f"{type(parser).__name__}.parse", error, callers=2) from error  # `parse_turn` calls it


async def _run_calls(
    calls: Sequence[ToolCall], registry: ToolRegistry, episode_id: str, count: Callable[[str], Sequence[int]] | None
) -> list[StepResult]:
    """Run the calls until one ends the episode; returns those of them that were steps."""
    steps: list[StepResult] = []
    for call in calls:
        if steps and steps[-1].done:
            call.result = ToolResult(False, "The episode had ended before this call.")
            continue
        _name_plain_input(call, registry)
        call.result = await registry.call(call, episode_id=episode_id, count=count)
        if call.result.step is not None:
            steps.append(call.result.step)
    return steps


def _name_plain_input(call: ToolCall, registry: ToolRegistry) -> None:
    """Assign an unnamed input, as ReAct allows, to the tool's only parameter."""
    tool = registry.get(call.name)
    if tool is None or list(call.arguments) != [PLAIN_INPUT]:
        return
    names = list(tool.definition.parameters.get("properties", {}))
    if len(names) == 1:
        call.arguments = {names[0]: call.arguments[PLAIN_INPUT]}


async def _step(action: str, host: Host) -> TurnResult:
    result = await host.step(action)
    message = {"role": "user", "content": result.observation}
    return TurnResult([message], result.reward, result.terminated, result.truncated, result.info)


def _tool_message(call: ToolCall, result: ToolResult) -> Message:
    return {"role": "tool", "name": call.name, "content": result.text}


def _record(call: ToolCall) -> dict[str, Any]:
    result = call.result or ToolResult(ok=False, text="")
    record: dict[str, Any] = {
        "name": call.name,
        "arguments": call.arguments,
        "ok": result.ok,
        "seconds": round(result.seconds, 6),
    }
    if result.failure:
        record["failure"] = result.failure
    if result.cut:
        record["cut"] = True
    return record
