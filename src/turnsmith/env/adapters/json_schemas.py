"""JSON schemas of data files: checked when rows are loaded, never fetched from anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from turnsmith.errors import EnvironmentFailure, MissingDependency


def schema_text(answer: Any) -> str:
    """The schema in an answer column as JSON.

    Raises:
        MissingDependency: jsonschema is not installed.
        EnvironmentFailure: It is no JSON schema, or refers to something that does not stand in it.

    Example:
        >>> schema_text({"type": "object"})
        '{"type": "object"}'
    """
    text = json.dumps(answer) if isinstance(answer, (Mapping, bool)) else str(answer)
    problem = _problem(text)
    if problem:
        raise EnvironmentFailure(f"The answer {problem}.")
    return text


@lru_cache(maxsize=1024)
def _problem(text: str) -> str:
    try:
        from jsonschema import SchemaError
    except ImportError as error:
        raise MissingDependency("Checking JSON against a schema needs jsonschema: pip install jsonschema.") from error
    try:
        schema: Any = json.loads(text)
        if not isinstance(schema, (Mapping, bool)):
            raise ValueError("it is neither an object nor true or false")
        _kind_of(schema).check_schema(schema)
        reference = _unresolvable(schema)
    except SchemaError as error:
        return f"is not a JSON schema: {error.message}"
    except (ValueError, RecursionError, TypeError, AttributeError) as error:  # jsonschema's, of keywords of wrong types
        return f"{text[:80]!r} is not a JSON schema: {error}"
    if reference:
        return f"is a JSON schema that refers to {reference!r}, which does not stand in it; nothing is fetched"
    return ""


def validator_of(text: str) -> Any:
    """A jsonschema validator that finds nothing but the schema itself and the specifications of JSON Schema."""
    from jsonschema_specifications import REGISTRY

    schema: Any = json.loads(text)
    return _kind_of(schema)(schema, registry=REGISTRY)


def _kind_of(schema: Any) -> Any:
    """The class for the draft of JSON Schema that a schema names."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(schema, default=Draft202012Validator)


def read_strict_json(text: str) -> Any:
    """JSON by its standard, without `NaN`, `Infinity` and numbers that would become infinite.

    Raises:
        ValueError: It is not JSON.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


def _unresolvable(schema: Any) -> str:
    """The first reference in a schema that cannot be resolved."""
    from jsonschema_specifications import REGISTRY
    from referencing import Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    root: Any = Resource.from_contents(schema, default_specification=DRAFT202012)
    waiting = [(root, REGISTRY.resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        contents = resource.contents if isinstance(resource.contents, Mapping) else {}
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            reference = contents.get(name)
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except Unresolvable:
                return str(reference)
        waiting += [(one, resolver.in_subresource(one)) for one in resource.subresources()]
    return ""
