"""OpenEnv's protocol as it is written: codes of errors, and the list of MCP tools, a call, and its result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.mcp import part_text

CAPACITY, INVALID = "CAPACITY_REACHED", "VALIDATION_ERROR"
NO_STEP = "turnsmith/no_step"
"""In the `_meta` of a tool: whether a call of it is no step, like one of a `@tool` method behind `turnsmith serve`."""
LIST_ACTION = {"type": "list_tools"}
LIST_REQUEST = {"jsonrpc": "2.0", "method": "tools/list", "id": 1}
"""Lists the tools without a step: a server may refuse the action, and a server without tools would do a step."""


def is_tool_call(action_schema: Mapping[str, Any]) -> bool:
    """Whether a server's action is, or can be, a call of a tool.

    Example:
        >>> is_tool_call({"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}}})
        True
    """
    return '"const": "call_tool"' in json.dumps(action_schema)


def has_no_fields(action_schema: Mapping[str, Any]) -> bool:
    """Whether it is the base class of all actions, calls of tools among them.

    Example:
        >>> has_no_fields({"title": "Action", "properties": {"metadata": {"type": "object"}}})
        True
    """
    return set(action_schema.get("properties", ())) == {"metadata"}


def read_tools(listed: Any) -> list[tuple[ToolDefinition, bool]]:
    """The tools in the answer to either request, and whether a call of each is a step; none if it has no list."""
    tools = listed.get("tools") if isinstance(listed, Mapping) else None
    if not isinstance(tools, list):
        return []
    schemas = ("input_schema", "inputSchema")
    return [
        (
            ToolDefinition(
                str(tool["name"]),
                str(tool.get("description") or "").strip(),
                next((dict(tool[name]) for name in schemas if tool.get(name)), {}),
            ),
            not (isinstance(meta := tool.get("_meta"), Mapping) and meta.get(NO_STEP) is True),
        )
        for tool in tools
        if isinstance(tool, Mapping) and "name" in tool and all(isinstance(tool.get(key, {}), dict) for key in schemas)
    ]


def read_call(action: str) -> dict[str, Any] | None:
    """The action of a call as `step` gets it; None if the text is no call.

    Example:
        >>> read_call('{"name": "open", "arguments": {"door": 3}}')
        {'type': 'call_tool', 'tool_name': 'open', 'arguments': {'door': 3}}
        >>> read_call("Open the door!")
    """
    try:
        call = json.loads(action)
        return {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def error_of(observation: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and message of the error in the observation of a call; two empty texts if it has none.

    Example:
        >>> error_of({"result": None, "error": {"error_type": "execution_error", "message": "The door is locked."}})
        ('execution_error', 'The door is locked.')
    """
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, Mapping):
        return str(error.get("error_type")), str(error.get("message"))
    if isinstance(result, Mapping) and result.get("is_error"):
        return "execution_error", result_text(result)
    return ("execution_error", str(error)) if error else ("", "")


def result_text(result: Any) -> str:
    """The result of a call as the model sees it.

    Example:
        >>> result_text({"content": [{"type": "text", "text": "It opens."}, {"type": "image"}], "is_error": False})
        'It opens.\\n[image]'
        >>> result_text(3)
        '3'
    """
    parts = result.get("content") if isinstance(result, Mapping) else None
    if isinstance(parts, list) and all(isinstance(part, Mapping) and "type" in part for part in parts):
        return "\n".join(map(part_text, parts))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
