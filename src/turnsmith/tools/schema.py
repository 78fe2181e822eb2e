"""What the model is told of a function that is a tool: its JSON Schema, with pydantic, and what is missing in it.

pydantic is imported on first use, and each function is read once.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.tools.arguments import BadArguments


@dataclass(frozen=True, slots=True)
class Signature:
    """Description, argument schema and argument validator of a function.

    Example:
        >>> def find(customer: str, limit: int = 5) -> str:
        ...     '''Find orders.
        ...
        ...     Args:
        ...         customer: Who bought.
        ...     '''
        >>> signature = signature_of(find)
        >>> signature.description, signature.parameters["required"]
        ('Find orders.', ['customer'])
        >>> signature.parameters["properties"]["customer"]
        {'description': 'Who bought.', 'type': 'string'}
        >>> signature.check({"customer": "Ann", "limit": "3"})
        {'customer': 'Ann', 'limit': 3}
        >>> signature.check({"customer": "Ann", "limit": "all"})
        Traceback (most recent call last):
        turnsmith.tools.arguments.BadArguments: The argument limit must be a valid integer, not 'all'.
    """

    description: str
    parameters: dict[str, Any]
    """A JSON Schema of type `object`."""
    validate: Callable[[dict[str, Any]], dict[str, Any]]
    """pydantic's validator; raises its `ValidationError`."""
    is_open: bool
    """Whether the function accepts any further argument (`**arguments`)."""

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Convert the arguments to the types that the function declares.

        Raises:
            BadArguments: An argument is missing, unknown or of the wrong type.
        """
        try:
            return self.validate(arguments)
        except Exception as error:
            if type(error).__name__ != "ValidationError":  # raised by a validator of the user: not the model's mistake
                raise
            from turnsmith.tools.error_messages import explain_validation_error

            raise BadArguments(explain_validation_error(error, self.parameters)) from None


@lru_cache(maxsize=1024)
def signature_of(function: Callable[..., Any], *, bound: bool = False) -> Signature:
    """Read a function's type hints and docstring.

    Args:
        function: The function; for a method, the function behind it.
        bound: Whether Python passes the first parameter (`self`).

    Raises:
        ConfigError: The function cannot be a tool; the message says why.
    """
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    summary, descriptions = _read_docstring(function.__doc__)
    hints = _hints(name, function)
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    extra = "forbid"
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ConfigError(
                f"{name} cannot be a tool: its parameter {parameter} cannot be passed by name, as tool calls do."
            )
        if parameter.default is not parameter.empty:
            defaults[parameter.name] = parameter.default
        hint = hints.get(parameter.name, Any)
        fields[parameter.name] = _field(hint, descriptions.get(parameter.name), parameter.name in defaults)
    return _build(name, summary, fields, defaults, extra)


def _read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph and the argument descriptions of a Google, NumPy, Sphinx or Epydoc docstring."""
    from docstring_parser import parse

    docstring = parse(text or "")
    summary = (docstring.description or "").strip().partition("\n\n")[0]
    arguments = {argument.arg_name: " ".join((argument.description or "").split()) for argument in docstring.params}
    return " ".join(summary.split()), arguments


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be a tool: its type hints cannot be resolved ({error}). "
            "Define or import the types they name at the top level of the module."
        ) from error


def _field(hint: Any, description: str | None, optional: bool) -> Any:
    from pydantic import Field

    if description is None and typing.get_origin(hint) is typing.Annotated:
        description = next((note for note in hint.__metadata__ if isinstance(note, str)), None)
    if description:
        hint = typing.Annotated[hint, Field(description=description)]
    # The function fills in its own defaults: they need no validation and may be of a type that JSON cannot hold.
    return typing.NotRequired[hint] if optional else typing.Required[hint]


def _build(name: str, summary: str, fields: dict[str, Any], defaults: dict[str, Any], extra: str) -> Signature:
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict

    # A TypedDict instead of a model: its keys may have any name, even `json` and `model_config`.
    shape: Any = TypedDict(name, fields)  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    shape.__pydantic_config__ = ConfigDict(extra=extra, allow_inf_nan=False)  # pyright: ignore[reportArgumentType]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(shape)
        parameters = _drop_titles(adapter.json_schema())
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{name} cannot be a tool: the type of one of its parameters has no JSON Schema ({reason})."
        ) from error
    if extra == "forbid":
        del parameters["additionalProperties"]  # the model learns of it from the error message, not from every prompt
    _add_defaults(parameters, defaults)
    return Signature(summary, parameters, adapter.validator.validate_python, extra == "allow")


def _add_defaults(parameters: dict[str, Any], defaults: dict[str, Any]) -> None:
    from pydantic_core import to_jsonable_python

    for name, value in defaults.items():
        try:
            parameters["properties"][name].setdefault("default", to_jsonable_python(value))
        except Exception:  # no JSON form: the schema does without it
            pass


_KEYED_BY_NAME = ("properties", "$defs", "patternProperties")
_VERBATIM = ("default", "const", "enum", "examples", "required")


def _drop_titles(schema: Any) -> Any:
    """Drop the titles that pydantic derives from names: they add nothing and cost tokens in every prompt."""
    if isinstance(schema, list):
        return [_drop_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _KEYED_BY_NAME:
            cleaned[key] = {name: _drop_titles(item) for name, item in value.items()}
        elif key in _VERBATIM:
            cleaned[key] = value
        elif key != "title":
            cleaned[key] = _drop_titles(value)
    return cleaned


def what_is_untold(name: str, description: str | None, function: Any) -> list[str]:
    """What the model is not told about a tool, because it has no description or parameters without type hints."""
    if not inspect.isfunction(function):  # written in C
        return []
    messages = (
        [] if description else [f"The tool {name} has no docstring: the model is told nothing about what it does."]
    )
    for parameter in inspect.signature(function).parameters.values():
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls") and not is_variadic:
            messages.append(
                f"The parameter {parameter.name} of the tool {name} has no type hint: the model is told nothing about "
                "its type, and any value is accepted."
            )
    return messages


def warn_if_incomplete(name: str, description: str | None, function: Any) -> None:
    """Warn, at the line of its definition, about what the model is not told about a tool."""
    function = inspect.unwrap(function)
    messages = what_is_untold(name, description, function)
    if not messages:
        return
    code, seen = function.__code__, function.__globals__.setdefault("__warningregistry__", {})
    for message in messages:
        warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno, function.__module__, seen)


def require_self(owner: type, member: Any) -> None:
    """Refuse a marked method that forgot `self`: Python would pass the environment as its first argument."""
    if not inspect.isfunction(member):  # a static or class method
        return
    first = next(iter(inspect.signature(member).parameters.values()), None)
    if first is None or (first.name != "self" and first.kind is not first.VAR_POSITIONAL):
        raise ConfigError(
            f"The tool method {owner.__name__}.{member.__name__} has no parameter `self`; "
            "add it, or mark the method with @staticmethod."
        )
