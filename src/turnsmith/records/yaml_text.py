"""YAML 1.2's core schema: `1e-4` is a number, `no` and `2024-01-01` are strings, and a duplicate key is an error.

PyYAML implements YAML 1.1, where `1e-4` is a string and `no` is false.
"""

from __future__ import annotations

import re
from typing import Any

import yaml


class YamlProblem(Exception):
    """The text is not valid YAML; the message says where and why in one line."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node.value, str) and key_node.value in seen:
                line = key_node.start_mark.line + 1
                raise YamlProblem(f"duplicate key {key_node.value!r} (line {line})")
            if isinstance(key_node.value, str):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


# Keeps YAML 1.1's rules besides ours, so that a string which either version would read as something else is quoted.
class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {}
_RULES = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
)
for _class in (_Loader, _Dumper):
    for _tag, _pattern, _first in _RULES:
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def _as_plain(dumper: yaml.SafeDumper, data: Any) -> yaml.Node:
    """What YAML cannot express: sets and tuples as lists, subclasses of str, int or float as such, others as `str`."""
    if isinstance(data, tuple | set | frozenset):
        return dumper.represent_list(list(data))
    if isinstance(data, str | int | float):  # Subclasses, such as a StrEnum or a numpy float.
        base = str if isinstance(data, str) else int if isinstance(data, int) else float
        return dumper.represent_data(base(data))
    return dumper.represent_str(str(data))


_Dumper.add_multi_representer(object, _as_plain)


def parse_yaml(text: str) -> Any:
    """Parse YAML into plain Python values.

    Example:
        >>> parse_yaml("{rate: 1e-4, country: no, day: 2024-01-01}")
        {'rate': 0.0001, 'country': 'no', 'day': '2024-01-01'}
    """
    try:
        value = yaml.load(text, Loader=_Loader)
        if _count(value, {}) > _MAX_VALUES:
            raise YamlProblem(f"with its aliases expanded it has more than {_MAX_VALUES} values")
        return value
    except RecursionError:
        raise YamlProblem("it is nested too deeply, or contains itself") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise YamlProblem(f"{error.problem}{f' (line {mark.line + 1})' if mark else ''}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlProblem(" ".join(str(error).split())) from None


_MAX_VALUES, _MAX_NUMBER_BITS = 100_000, 4096


def _count(value: Any, known: dict[int, int]) -> int:
    """Number of values once every alias is expanded, as copying and printing do: ten lines can expand to billions.

    Visits each part once, however often it is used. A part that contains itself raises `RecursionError`.
    """
    if isinstance(value, int) and value.bit_length() > _MAX_NUMBER_BITS:  # Python refuses to print such numbers.
        raise YamlProblem(f"a number in it has more than {_MAX_NUMBER_BITS} bits")
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        parts: Any = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(value)]


def dump_yaml(value: Any) -> str:
    """Format a value as YAML, keys in their own order; objects that YAML cannot express are written as their `str`.

    Example:
        >>> print(dump_yaml({"training": {"learning_rate": 1e-4, "shape": (2, 3), "name": "no"}}), end="")
        training:
          learning_rate: 0.0001
          shape:
          - 2
          - 3
          name: 'no'
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
