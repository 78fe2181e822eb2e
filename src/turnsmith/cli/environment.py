"""Finds the environment that a command line names, and says in words what is wrong when it is not there."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from difflib import get_close_matches
from pathlib import Path

from turnsmith.errors import ConfigError


def locate_environment(text: str) -> str:
    """`module:Name` or `file.py:Name` as a name that every process on this machine can load.

    The source is read, not run. The current folder (for a file, also the folder it is in) goes on the import path of
    this process and of those it starts.

    Raises:
        ConfigError: There is no such module, file or class.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(_incomplete(text))
    _add_to_path(Path.cwd())
    if place.endswith(".py") or "/" in place:
        file = _existing_file(place)
        _add_to_path(file.parent)
        _check_class(file, place, name)
        return f"{file}:{name}"
    try:
        found = importlib.util.find_spec(place)
    except ModuleNotFoundError as error:
        if not place.startswith(error.name or ""):
            return text  # The module is there, but something it imports is not: loading it will say what.
        found = None
    except Exception:  # noqa: BLE001  (a parent package of the user's raised: loading it will say how)
        return text
    if found is None:
        raise ConfigError(_no_module(place))
    if found.origin and found.origin.endswith(".py"):
        _check_class(Path(found.origin), place, name)
    return text


def _incomplete(text: str) -> str:
    message = f"{text!r} does not name an environment: write module:Name or path/to/file.py:Name."
    file = Path(text.rstrip(":") if text.endswith(".py") else f"{text.rstrip(':').replace('.', '/')}.py")
    classes = _environments(file) if file.is_file() else []
    return f"{message} For example {text.rstrip(':')}:{classes[0]}" if classes else message


def _existing_file(place: str) -> Path:
    file = Path(place).expanduser()
    if file.is_file():
        return file.resolve()
    if file.with_suffix(".py").is_file():
        raise ConfigError(f"There is no file {place}. Did you mean {file.with_suffix('.py')}?")
    here = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
    close = get_close_matches(file.name, here, n=1)
    raise ConfigError(f"There is no file {place}." + (f" Did you mean {file.parent / close[0]}?" if close else ""))


def _no_module(place: str) -> str:
    package, _, last = place.rpartition(".")
    try:
        parent = importlib.util.find_spec(package) if package else None
    except ModuleNotFoundError:
        parent = None
    if package and parent is None:
        return _no_module(package)
    folders = [Path(folder) for folder in (parent.submodule_search_locations or ())] if parent else [Path.cwd()]
    here = {file.stem for folder in folders for file in folder.glob("*.py")}
    here |= {file.parent.name for folder in folders for file in folder.glob("*/__init__.py")}
    close = get_close_matches(last, sorted(here), n=1)
    if not close:
        return f"There is no module {place!r} on the import path or in the current folder."
    return f"There is no module {place!r}. Did you mean {(f'{package}.' if package else '') + close[0]!r}?"


def _check_class(file: Path, place: str, name: str) -> None:
    """Complain about a class that the source does not have, if it has one of a name that is close."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{place} is not valid Python: {error.args[0]}{line}.") from None
    classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
    known = {child.id for node in body for child in ast.walk(node) if isinstance(child, ast.Name)} | set(classes)
    imported = {alias.asname or alias.name for node in ast.walk(ast.Module(body, [])) for alias in _aliases(node)}
    if name in known or name in imported or "." in name:
        return
    lowered = {other.lower(): other for other in classes}
    close = get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    if close:
        raise ConfigError(f"{place} has no class {name!r}. Did you mean {lowered[close[0]]!r}?")
    if "*" not in imported:
        there = _environments(file)
        listed = f" It has: {', '.join(there)}." if there else " It has no class with a `step` method."
        raise ConfigError(f"{place} has no class {name!r}.{listed}")


def _aliases(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []


def _environments(file: Path) -> list[str]:
    """The classes in a source file that have a `step` method."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):
        return []
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef) and any(isinstance(f, functions) and f.name == "step" for f in node.body)
    ]


def _add_to_path(folder: Path) -> None:
    """Make a folder importable here and in the processes that we start, which inherit PYTHONPATH."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(folder) not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *inherited])
