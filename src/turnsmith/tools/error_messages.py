"""Messages that tell the model what is wrong with a call, each one short sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from turnsmith.text import replace_surrogates
from turnsmith.tools.arguments import BadArguments


def explain_validation_error(error: Any, parameters: dict[str, Any]) -> str:
    """The first of pydantic's errors in one sentence, without its URLs, class names and long values.

    Args:
        error: pydantic's `ValidationError`.
        parameters: The JSON Schema of the arguments.
    """
    details, *more = error.errors(include_url=False, include_context=False)
    path: tuple[Any, ...] = details["loc"]
    argument = shorten_name(".".join(str(part) for part in path))
    kind: str = details["type"]
    if kind == "missing":
        unknown = [shorten_name(str(one["loc"][0])) for one in more if one["type"] == "extra_forbidden"]
        instead = f" {unknown_argument(unknown[0], parameters.get('properties', {}))}" if unknown else ""
        return f"The argument {argument} is missing.{instead}"
    if kind == "extra_forbidden" and len(path) == 1:
        return unknown_argument(argument, parameters.get("properties", {}))
    if kind == "extra_forbidden":
        return f"There is no argument {argument}."
    schema = parameters.get("properties", {}).get(path[0], {}) if path else {}
    if "anyOf" in schema:  # pydantic reports one error for each member of a union; the schema names them all at once
        kinds = dict.fromkeys(str(member.get("type", "object")) for member in schema["anyOf"])
        argument, value = shorten_name(str(path[0])), shorten_value(details["input"])
        return f"The argument {argument} must be of type {' or '.join(kinds)}, not {value}."
    message = shorten_name(str(details["msg"]), 200).removesuffix(".")
    if message.startswith("Input should "):
        expected = message.removeprefix("Input should ").partition(", ")[0] if "parsing" in kind else message[13:]
        return f"The argument {argument} must {expected}, not {shorten_value(details['input'])}."
    return f"The argument {argument} is not valid: {message.removeprefix('Value error, ')}."


def unknown_argument(name: str, known: Iterable[str]) -> str:
    """The message for an argument that the tool does not have.

    Example:
        >>> unknown_argument("qury", ["query", "limit"])
        'There is no argument qury; the arguments are query, limit.'
    """
    names = ", ".join(known)
    return f"There is no argument {name}; " + (f"the arguments are {names}." if names else "the tool takes none.")


def unknown_tool(name: object, known: Iterable[str]) -> str:
    """The message for a tool that does not exist.

    Example:
        >>> unknown_tool("serch", ["search", "refund"])
        'There is no tool serch. Did you mean search?'
        >>> unknown_tool("fly", ["search", "refund"])
        'There is no tool fly. The tools are refund, search.'
    """
    wanted = shorten_name(str(name)) if isinstance(name, str) and name else "of that name"
    names = sorted(known)
    close = difflib.get_close_matches(wanted, names, n=3)
    if close:
        return f"There is no tool {wanted}. Did you mean {' or '.join(close)}?"
    return f"There is no tool {wanted}. " + (f"The tools are {', '.join(names)}." if names else "There are no tools.")


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def check_schema(arguments: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Check arguments against a JSON Schema as far as names and plain types go.

    For tools that bring their own schema, such as those of an MCP server, which checks the rest itself.

    Example:
        >>> check_schema({}, {"properties": {"city": {"type": "string"}}, "required": ["city"]})
        Traceback (most recent call last):
        turnsmith.tools.arguments.BadArguments: The argument city is missing.
    """
    properties: dict[str, Any] = parameters.get("properties") or {}
    is_closed = bool(properties) and not parameters.get("additionalProperties")
    for name in parameters.get("required") or ():
        if name not in arguments:
            unknown = next((one for one in arguments if is_closed and one not in properties), None)
            instead = "" if unknown is None else f" {unknown_argument(shorten_name(str(unknown)), properties)}"
            raise BadArguments(f"The argument {shorten_name(str(name))} is missing.{instead}")
    for name, value in arguments.items():
        if name not in properties:
            if is_closed:
                raise BadArguments(unknown_argument(shorten_name(str(name)), properties))
            continue
        schema = properties[name]
        kind = schema.get("type") if isinstance(schema, dict) else None
        accepted = _TYPES.get(kind) if isinstance(kind, str) else None
        is_wrong_bool = isinstance(value, bool) and kind != "boolean"  # bool is a subclass of int
        if accepted and (is_wrong_bool or not isinstance(value, accepted)):
            raise BadArguments(f"The argument {name} must be of type {kind}, not {shorten_value(value)}.")
    return arguments


def shorten_value(value: object, limit: int = 80) -> str:
    """The `repr` of a value, truncated to `limit` characters. The arguments were checked, so it is never huge.

    Example:
        >>> shorten_value("x" * 100, 20)
        "'xxxxxxxxxxxxxxxx..."
    """
    try:
        text = replace_surrogates(repr(value))
    except Exception:
        text = type(value).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shorten_name(name: str, limit: int = 80) -> str:
    """A name as the model wrote it, on one line and at most `limit` characters long."""
    return replace_surrogates(" ".join(name[: limit * 2].split()))[:limit]
