"""Prints the page docs/configuration.md from the config: `python -m turnsmith.cli.config_reference > that file`."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from turnsmith import config as config_module
from turnsmith.config import ConfigStore, ImportName
from turnsmith.records.yaml_text import dump_yaml

_HEAD = """\
# All settings

Made by `python -m turnsmith.cli.config_reference > docs/configuration.md`; a test fails when this page is out of date.

Set them in Python (`config.training.batch_size = 16`), in a YAML file (`training: {batch_size: 16}`) or on the command
line (`training.batch_size=16`). A name that does not exist, or a value of the wrong type, is an error that names the
closest right one. `turnsmith train ... --dry-run` prints all settings of a run, and what they become for verl.
"""
_TYPES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "`true`, `false`",
    NoneType: "null",
    ImportName: "`module:name`",
}
_OPEN = {
    "environment": """\
Any other name is yours: `environment.board_size=3` reaches your environment as `config.board_size`.
""",
    "verl": """\
`verl.trainer.balance_batch=false` sets a setting of verl 0.9.1 that has none above. A name that verl does not have is
an error with the closest one that it has; a name that turnsmith sets itself is an error with the setting above that
decides over it. A `+` before the name (`+actor_rollout_ref.model.override_config.rope_theta`) adds one that verl's own
files do not name.
""",
}


def config_reference() -> str:
    """The page, in Markdown."""
    hints = get_type_hints(ConfigStore)
    return "\n".join([_HEAD, *(_section(item.name, hints[item.name]) for item in fields(ConfigStore))])


def _section(name: str, kind: Any) -> str:
    if name == "verl":
        return f"## `verl`\n\n{_docstrings(ConfigStore)['verl']}\n\n{_OPEN['verl']}"
    said = (inspect.getdoc(kind) or "").splitlines()[0]
    rows = [_row(name, kind, field) for field in _types(kind)]
    table = "\n".join(["| setting | takes | unless set | what it does |", "| --- | --- | --- | --- |", *rows])
    return f"## `{name}`\n\n{said}\n\n{table}\n" + (f"\n{_OPEN[name]}" if name in _OPEN else "")


def _row(section: str, kind: Any, field: str) -> str:
    default = dump_yaml({"it": getattr(kind(), field)}).removeprefix("it:").strip()
    return f"| `{section}.{field}` | {_takes(_types(kind)[field])} | `{default}` | {_docstrings(kind).get(field, '')} |"


def _takes(kind: Any) -> str:
    """What a setting takes, in words: a type, or its fixed choices."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = [
        ", ".join(f"`{choice}`" for choice in get_args(member))
        if get_origin(member) is Literal
        else f"list of {_takes(get_args(member)[0])}"
        if get_origin(member) is list
        else _TYPES[member]
        for member in members
    ]
    return " or ".join(words)


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _body(kind: Any) -> list[ast.stmt]:
    tree = ast.parse(inspect.getsource(config_module))
    return next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def _docstrings(kind: Any) -> dict[str, str]:
    """What the text under each setting says, on one line."""
    said: dict[str, str] = {}
    body = _body(kind)
    for node, after in pairwise(body):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                text = re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", " ".join(text.split()))
                said[name] = text.replace("|", "\\|")
            case _:
                pass
    return said


if __name__ == "__main__":
    print(config_reference(), end="")
