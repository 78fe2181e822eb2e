"""YAML as people expect it: `1e-4` is a number, `no` and `2024-01-01` are texts, a key that is there twice is an error.

PyYAML follows YAML 1.1, where `1e-4` is a text and `no` is false. This is the core schema of YAML 1.2 instead.
"""

from __future__ import annotations

import re
from typing import Any

import yaml


class YamlProblem(Exception):
    """The text is not YAML; says where and why in one line."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node.value, str) and key_node.value in seen:
                line = key_node.start_mark.line + 1
                raise YamlProblem(f"the key {key_node.value!r} is there twice (line {line})")
            if isinstance(key_node.value, str):
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):  # Keeps the rules of 1.1 besides ours: a text that either reading mistakes is quoted.
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
    """What YAML has no form for: sequences as lists, numbers of other libraries as numbers, the rest as its text."""
    if isinstance(data, tuple | set | frozenset):
        return dumper.represent_list(list(data))
    if isinstance(data, str | int | float):  # A subclass, such as a StrEnum or a numpy float.
        base = str if isinstance(data, str) else int if isinstance(data, int) else float
        return dumper.represent_data(base(data))
    return dumper.represent_str(str(data))


_Dumper.add_multi_representer(object, _as_plain)


def parse_yaml(text: str) -> Any:
    """The value a YAML text stands for.

    Example:
        >>> parse_yaml("{rate: 1e-4, country: no, day: 2024-01-01}")
        {'rate': 0.0001, 'country': 'no', 'day': '2024-01-01'}
    """
    try:
        value = yaml.load(text, Loader=_Loader)
        if _count(value, {}) > _MOST_VALUES:
            raise YamlProblem(f"with its aliases written out it has more than {_MOST_VALUES} values")
        return value
    except RecursionError:
        raise YamlProblem("it is nested too deeply, or contains itself") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise YamlProblem(f"{error.problem}{f' (line {mark.line + 1})' if mark else ''}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise YamlProblem(" ".join(str(error).split())) from None


_MOST_VALUES, _LONGEST_NUMBER = 100_000, 4096


def _count(value: Any, known: dict[int, int]) -> int:
    """How many values there are when every alias is written out, as copying and printing do: ten lines can be billions.

    Counts each part once, however often it is used; a part that contains itself ends in a `RecursionError`.
    """
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:  # Python itself refuses to print it
        raise YamlProblem(f"a number in it has more than {_LONGEST_NUMBER} bits")
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        parts: Any = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(value)]


def dump_yaml(value: Any) -> str:
    """YAML text for `value`, in its own order; an object that YAML has no form for is written as its text.

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
