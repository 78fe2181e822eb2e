"""What happens to what the model said: tools are called, or the environment steps. One place, for every loop's face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnsmith.env.host import Host
from turnsmith.env.isolation.remote_environment import RemoteEnvironment
from turnsmith.inference.chat import Chat
from turnsmith.tools.definition import ToolCall, ToolResult
from turnsmith.tools.parsing import ActionParser, FormatProblem, NativeParser
from turnsmith.tools.parsing.base import PLAIN_INPUT
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.tool import tools_of

Message = dict[str, str]


@dataclass(slots=True)
class TurnResult:
    """What came back for one turn of the model."""

    messages: list[Message]
    """What to tell the model next."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    calls: list[ToolCall] = field(default_factory=list)
    """The tool calls of this turn, each with its result."""
    problem: FormatProblem | None = None
    """Why no call could be read, when the model seems to have tried one."""
    is_over_limit: bool = False
    """Whether the turn asked for more calls than were left; then none of them was run."""

    @property
    def done(self) -> bool:
        """Whether the episode ends with this turn."""
        return self.terminated or self.truncated


class EpisodeTools:
    """The tools one episode offers: those given to the run, and the environment's own `@tool` methods."""

    def __init__(self, environment: Any, given: ToolRegistry | None, parser: ActionParser) -> None:
        own = environment.remote_tools if isinstance(environment, RemoteEnvironment) else tools_of(environment)
        if own or given is None:
            given = ToolRegistry([*(given or ()), *own])
        self.registry = given
        self.parser = parser

    def __bool__(self) -> bool:
        return len(self.registry) > 0

    def introduce(self, system_prompt: str, chat: Chat) -> tuple[str, list[dict[str, Any]] | None]:
        """The system prompt with the tools in it, or the tools for a template that shows them in its own way."""
        if not self:
            return system_prompt, None
        definitions = self.registry.definitions()
        if self.parser.is_native and chat.renders_tools:
            return system_prompt, [definition.as_openai() for definition in definitions]
        return join_prompts(system_prompt, self.parser.instructions(definitions)), None


def join_prompts(*texts: str) -> str:
    """The texts that are not empty, a blank line between them."""
    return "\n\n".join(text for text in texts if text)


async def apply_action(
    said: str,
    host: Host,
    toolbox: EpisodeTools | None,
    *,
    ids: Sequence[int] = (),
    episode_id: str = "",
    count: Callable[[str], Sequence[int]] | None = None,
    calls_left: int | None = None,
) -> TurnResult:
    """Call the tools that the model asked for; where it asked for none, let the environment step.

    Calls of one turn run one after another, in the order they were written, because they may share state. A call that
    cannot be read is told to the model in a sentence and costs it the turn, nothing else. A turn with more calls than
    `calls_left` has none of them run.
    """
    if not toolbox:
        return await _step(said, host)
    parser = toolbox.parser
    # A family's own marks may be control tokens, which the text no longer shows.
    parsed = parser.parse_ids(ids) if ids and isinstance(parser, NativeParser) else parser.parse(said)
    if calls_left is not None and len(parsed.calls) > calls_left:
        asked = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
        return TurnResult([], info={"tool_calls_not_run": asked}, is_over_limit=True)
    if parsed.calls:
        for call in parsed.calls:
            _name_plain_input(call, toolbox.registry)
            call.result = await toolbox.registry.call(call, episode_id=episode_id, count=count)
        messages = [_tool_message(call, call.result) for call in parsed.calls if call.result]
        info: dict[str, Any] = {"tool_calls": [_record(call) for call in parsed.calls]}
        reaction = TurnResult(messages, terminated=await host.is_over(), info=info, calls=parsed.calls)
    elif parsed.problem:
        reaction = TurnResult([])
    else:
        return await _step(parsed.text, host)
    if parsed.problem:  # also where some calls could be read and another one could not
        reaction.problem = parsed.problem
        reaction.messages.append({"role": "user", "content": parsed.problem.sentence})
        reaction.info["format_problem"] = parsed.problem.kind.value
    return reaction


def _name_plain_input(call: ToolCall, registry: ToolRegistry) -> None:
    """Give an input without a name, as ReAct allows, to the only parameter of the tool."""
    found = registry.get(call.name)
    if found is None or list(call.arguments) != [PLAIN_INPUT]:
        return
    names = list(found.definition.parameters.get("properties", {}))
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
