"""Tool calls in the model's own format, read by the run's parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnsmith.check.byte_chat import ByteChat
from turnsmith.check.finding import Check, Finding
from turnsmith.check.subject import Subject
from turnsmith.check.template_facts import NO_TOKENIZER, TemplateFacts, write_call
from turnsmith.env.host import open_host
from turnsmith.rollout.attempt import in_mix
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.parsing import FunctionCallingParser, NativeParser

_TEXT = 'A "quoted" <b>text</b>,\nof two lines & é'


async def check_call_format(subject: Subject) -> Finding:
    """Let the template write a call of each tool, and read it with the parser of the run."""
    chat, tool_format = subject.chat, subject.config.inference.tool_format
    if isinstance(chat, ByteChat) or subject.is_agent:
        return Finding("skipped", NO_TOKENIZER)
    tools = await _tools(subject)
    if not tools:
        return Finding("skipped", "The environment has no tools.")
    parser = subject.parser or FunctionCallingParser()
    calls = [{"name": tool.name, "arguments": sample_arguments(tool.parameters)} for tool in tools]
    written = [(call, write_call(chat, call)) for call in calls]
    unread = list[str]()
    for call, text in written:
        if text is None:
            continue
        turn = chat.tokenizer.encode(text, add_special_tokens=False)
        read = parser.parse_ids(turn) if isinstance(parser, NativeParser) else parser.parse(chat.text(turn))
        if [(one.name, one.arguments) for one in read.calls] != [(call["name"], call["arguments"])]:
            unread.append(f"{call['name']}: {text.strip()!r}")
    if unread:
        saw = f"With inference.tool_format={tool_format}, {len(unread)} of {len(calls)} calls that the template writes \
are not read as they were written, as {unread[0]}."
        fix = "The model may fall back to the format that it knows: try inference.tool_format=native." * (
            not parser.is_native
        )
        return Finding("failed" if parser.is_native else "warning", saw, fix or "Use inference.tool_format=json.")
    if not any(text for _, text in written):
        saw = f"The template has no tool calls: they are described in the prompt, in the format {tool_format}."
        return Finding("skipped", saw)
    closes = TemplateFacts.of(chat).closes_calls
    note = "" if closes else " The template does not end such a turn; episodes end where the model ends it."
    count = sum(text is not None for _, text in written)
    return Finding("passed", f"{count} calls that the template writes are read as they were written.{note}")


async def _tools(subject: Subject) -> list[ToolDefinition]:
    start, spec, _ = in_mix(subject.starts(1)[0], subject.rollout())
    host = open_host(spec.environment)
    try:
        await host.reset(start.seed, start.task)
        return [tool.definition for tool in [*(subject.tools or ()), *host.tools()]]
    finally:
        await host.close()


def sample_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a tool's JSON schema, with the characters that formats trip over.

    Example:
        >>> sample_arguments({"properties": {"count": {"type": "integer"}, "unit": {"enum": ["km", "m"]}}})
        {'count': 3, 'unit': 'km'}
    """
    return {name: _sample(one) for name, one in schema.get("properties", {}).items()}


def _sample(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return _sample(choice)
    kind = schema.get("type", "string")
    if kind == "object":
        return sample_arguments(schema)
    if kind == "array":
        return [_sample(schema.get("items", {}))]
    return {"integer": 3, "number": 2.5, "boolean": True, "null": None}.get(kind, _TEXT)


CALL_FORMAT = Check(
    "call format",
    "Lets the chat template write a call of each tool, and reads it with the parser of inference.tool_format.",
    "Calls that the parser does not read are never run: the model learns that tools do nothing.",
    check_call_format,
)
