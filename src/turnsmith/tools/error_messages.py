"""Telling a model what is wrong with the arguments it passed, in one short sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from turnsmith.text import replace_surrogates
from turnsmith.tools.arguments import BadArguments


def explain(error: Any, parameters: dict[str, Any]) -> str:
    """One sentence for pydantic's first complaint. Without its web addresses, its class names and long values.

    Args:
        error: pydantic's `ValidationError`.
        parameters: The JSON Schema of the arguments.
    """
    problem = error.errors(include_url=False, include_context=False)[0]
    place: tuple[Any, ...] = problem["loc"]
    where = short_name(".".join(str(part) for part in place))
    kind: str = problem["type"]
    if kind == "missing":
        return f"The argument {where} is missing."
    if kind == "extra_forbidden" and len(place) == 1:
        return unknown_argument(where, parameters.get("properties", {}))
    if kind == "extra_forbidden":
        return f"There is no argument {where}."
    schema = parameters.get("properties", {}).get(place[0], {}) if place else {}
    if "anyOf" in schema:  # pydantic complains once for each member of a union; the schema says it all at once
        kinds = dict.fromkeys(str(member.get("type", "object")) for member in schema["anyOf"])
        where, value = short_name(str(place[0])), short(problem["input"])
        return f"The argument {where} must be of type {' or '.join(kinds)}, not {value}."
    message = short_name(str(problem["msg"]), 200).removesuffix(".")
    if message.startswith("Input should "):
        expected = message.removeprefix("Input should ").partition(", ")[0] if "parsing" in kind else message[13:]
        return f"The argument {where} must {expected}, not {short(problem['input'])}."
    return f"The argument {where} is not right: {message.removeprefix('Value error, ')}."


def unknown_argument(name: str, known: Iterable[str]) -> str:
    """The sentence for an argument that the tool does not take.

    Example:
        >>> unknown_argument("qury", ["query", "limit"])
        'There is no argument qury; the arguments are query, limit.'
    """
    names = ", ".join(known)
    return f"There is no argument {name}; " + (f"the arguments are {names}." if names else "the tool takes none.")


def unknown_tool(name: object, known: Iterable[str]) -> str:
    """The sentence for a tool that does not exist.

    Example:
        >>> unknown_tool("serch", ["search", "refund"])
        'There is no tool serch. Did you mean search?'
        >>> unknown_tool("fly", ["search", "refund"])
        'There is no tool fly. The tools are refund, search.'
    """
    asked = short_name(str(name)) if isinstance(name, str) and name else "of that name"
    names = sorted(known)
    close = difflib.get_close_matches(asked, names, n=3)
    if close:
        return f"There is no tool {asked}. Did you mean {' or '.join(close)}?"
    return f"There is no tool {asked}. " + (f"The tools are {', '.join(names)}." if names else "There are no tools.")


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def check_schema(arguments: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """A first check against a JSON Schema: names that must be there, names that exist, plain types.

    For tools that bring a schema of their own, such as those of an MCP server, which checks the rest itself.

    Example:
        >>> check_schema({}, {"properties": {"city": {"type": "string"}}, "required": ["city"]})
        Traceback (most recent call last):
        turnsmith.tools.arguments.BadArguments: The argument city is missing.
    """
    properties: dict[str, Any] = parameters.get("properties") or {}
    for name in parameters.get("required") or ():
        if name not in arguments:
            raise BadArguments(f"The argument {short_name(str(name))} is missing.")
    is_closed = bool(properties) and not parameters.get("additionalProperties")
    for name, value in arguments.items():
        if name not in properties:
            if is_closed:
                raise BadArguments(unknown_argument(short_name(str(name)), properties))
            continue
        schema = properties[name]
        kind = schema.get("type") if isinstance(schema, dict) else None
        accepted = _TYPES.get(kind) if isinstance(kind, str) else None
        wrong_bool = isinstance(value, bool) and kind != "boolean"
        if accepted and (wrong_bool or not isinstance(value, accepted)):
            raise BadArguments(f"The argument {name} must be of type {kind}, not {short(value)}.")
    return arguments


def short(value: object, limit: int = 80) -> str:
    """A value as text of at most `limit` characters. Its size does not matter: it was bounded before.

    Example:
        >>> short("x" * 100, 20)
        "'xxxxxxxxxxxxxxxx..."
    """
    try:
        text = replace_surrogates(repr(value))
    except Exception:
        text = type(value).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def short_name(name: str, limit: int = 80) -> str:
    """A name as the model wrote it, on one line and not too long."""
    return replace_surrogates(" ".join(name[: limit * 2].split()))[:limit]
