"""Generates docs/reference/api/*.md from the docstrings of all public names: `python -m docs.hooks.api_reference`.

The examples on these pages are the doctests, which the unit tests run.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import turnsmith
from turnsmith import algo

FOLDER = Path(__file__).resolve().parents[1] / "reference" / "api"
_PAGES = {
    "environments": ("Environments", ("env.", "tools.step_result", "check.")),
    "tools": ("Tools and parsers", ("tools.",)),
    "training": ("Training", ("trainer", "inference.models", "records.run_warnings")),
    "evaluation": ("Episodes, evaluation and rewards", ("rollout.", "trajectory")),
    "inference": ("Inference", ("inference.",)),
    "records": ("Run folders", ("records.",)),
    "config": ("Settings", ("config",)),
    "errors": ("Errors", ("errors",)),
    "algo": ("Advantages and losses", ("algo",)),
}
"""The pages: file, title, and the modules whose names are on it; a name is on the first page that fits."""
_HEAD = """\
# {title}

Generated from the docstrings by `python -m docs.hooks.api_reference`; a test fails when it is out of date. The examples
are executed by the tests.
"""
_WIDTH = 76
"""Columns of a block of code that fit beside the menus."""
_SECTION = re.compile(r"^(Args|Returns|Raises|Example|Yields):$")


def api_reference() -> dict[str, str]:
    """The pages as Markdown, by file name."""
    entries: dict[str, list[str]] = {page: [] for page in _PAGES}
    for name in sorted(turnsmith.__all__, key=str.lower):
        if name != "algo":
            thing = getattr(turnsmith, name)
            entries[_page_of(thing.__module__)].append(_entry(name, thing))
    more = "[Troubleshooting](../../troubleshooting.md) has their messages, with the cause of each and what to do.\n"
    entries["errors"].insert(0, more)
    entries["algo"] = [_entry(name, getattr(algo, name)) for name in algo.__all__]
    found = {f"{page}.md": "\n".join([_HEAD.format(title=_PAGES[page][0]), *entries[page]]) for page in _PAGES}
    return {"index.md": _index(found), **found}


def _page_of(module: str) -> str:
    inside = module.removeprefix("turnsmith.")
    return next(page for page, (_, starts) in _PAGES.items() if inside.startswith(starts))


def _index(pages: dict[str, str]) -> str:
    lines = [_HEAD.format(title="All public names").partition(";")[0] + ".\n"]
    for file, text in pages.items():
        found = re.findall(r"^## `(\w+)`( \(\w+\))?$", text, re.MULTILINE)
        links = ", ".join(f"[`{name}`]({file}#{name.lower()}{_slug(more)})" for name, more in found)
        lines.append(f"**[{_PAGES[file.removesuffix('.md')][0]}]({file})**: {links}\n")
    return "\n".join(lines)


def _slug(more: str) -> str:
    return more.replace(" (", "-").rstrip(")")


def _entry(name: str, thing: Any) -> str:
    module = "turnsmith.algo" if name in algo.__all__ else "turnsmith"
    # Anchors do not tell capitals apart: the second of Tool and tool says what it is.
    is_second = name.islower() and name.capitalize() in turnsmith.__all__
    lines = [f"## `{name}`{' (decorator)' if is_second else ''}", ""]
    if callable(thing) and not _is_alias(thing):
        signature = _signature(f"{module}.{name}", thing)
        lines += ["```text", "\n    ".join(_wrapped(signature)), "```", ""]
    lines += [_docstring(thing) if not _is_alias(thing) else f"One of {_choices(thing)}.", ""]
    if inspect.isclass(thing):
        lines += _fields(thing) + _members(thing)
    return "\n".join(lines)


def _is_alias(thing: Any) -> bool:
    return hasattr(thing, "__args__")


def _choices(thing: Any) -> str:
    return ", ".join(f"`{choice}`" for choice in thing.__args__)


def _signature(name: str, thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    shown: list[str] = []
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not any(before.startswith("*") for before in shown):
            shown.append("*")
        shown.append(_parameter(one.replace(annotation=one.empty)))
    return f"{name}({', '.join(shown)})"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _parameter(one: inspect.Parameter) -> str:
    # What a default object prints as may hold an address, which differs each time.
    if one.default is not one.empty and ("<" in repr(one.default) or dataclasses.is_dataclass(one.default)):
        return f"{one.name}=..."
    return str(one)


def _fields(kind: type) -> list[str]:
    """The documented fields of a dataclass; those of settings have a page of their own."""
    if kind.__module__ == "turnsmith.config" and dataclasses.is_dataclass(kind):
        return ["[All settings](../../configuration.md) lists its fields.", ""]
    if not dataclasses.is_dataclass(kind):
        return []
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    rows: list[str] = []
    for node, after in pairwise([*tree.body, ast.Pass()]):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                rows.append(f"- `{name}`: {_links(' '.join(text.split()))}")
            case ast.AnnAssign(target=ast.Name(id=name)), _ if not name.startswith("_"):
                rows.append(f"- `{name}`")
            case _:
                pass
    return ["Fields:", "", *rows, ""] if rows else []


def _members(kind: type) -> list[str]:
    """Public methods and properties that the class itself defines, with the first sentence of each."""
    rows: list[str] = []
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        summary = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        shown = name if isinstance(member, property) else re.sub(r"\((self|cls)(, )?", "(", _signature(name, function))
        rows.append(f"- `{shown}`: {_links(summary)}")
    return ["Methods and properties:", "", *rows, ""] if rows else []


def _docstring(thing: Any) -> str:
    """Google's style as Markdown: sections become bold words, arguments a list, examples a block."""
    lines: list[str] = []
    section = ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        begun = _SECTION.match(line)
        if begun:
            lines += _close(section)
            section = begun[1]
            lines += ["```pycon"] if section == "Example" else [f"**{section}**", ""]
        elif section == "Example":
            lines.append(line[4:])
        elif section:
            lines.append(_argument(line) if section in ("Args", "Raises") else _links(line.strip()))
        else:
            lines.append(_links(line))
    return re.sub(r"\n+```(?=\n|$)", "\n```", "\n".join([*lines, *_close(section)]).strip())


def _close(section: str) -> list[str]:
    return ["```", ""] if section == "Example" else [""] if section else []


def _argument(line: str) -> str:
    named = re.match(r"    (\*{0,2}\w+): (.*)", line)
    return f"- `{named[1]}`: {_links(named[2])}" if named else f"  {_links(line.strip())}" if line.strip() else ""


def _links(text: str) -> str:
    return re.sub(r"docs/([\w/-]+)\.md", r"[\1](../../\1.md)", text).replace("<", "&lt;") if "`" not in text else text


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, text in api_reference().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
