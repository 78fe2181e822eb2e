"""Reads definitions from a wheel's source without importing it: CUDA builds cannot be imported on a CPU."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


class WheelSource:
    """The Python files of a wheel."""

    def __init__(self, wheel: Path) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self._names = set(self._archive.namelist())
        self.module = cache(self._module)

    def _module(self, name: str) -> ast.Module | None:
        text = self.source(name)
        return ast.parse(text) if text else None

    def source(self, module: str) -> str:
        """The text of a module; empty if it is not there."""
        path = module.replace(".", "/")
        files = [file for file in (f"{path}.py", f"{path}/__init__.py") if file in self._names]
        return self._archive.read(files[0]).decode() if files else ""

    def has(self, module: str, name: str) -> bool:
        """Whether `from module import name` would find it."""
        if self.module(f"{module}.{name}") is not None or self.find(module, name) is not None:
            return True
        tree = self.module(module)
        # vLLM's top level loads names on first use, from a table.
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} if tree else set()
        return tree is not None and "." not in module and name in texts

    def find(self, module: str, name: str) -> Definition | None:
        """A definition at the top of a module, also under `if` and `try`, or where that module imports it from."""
        for node in _statements(self.module(module)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return node
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
                return node
            if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
                source = self._source(module, node)
                if source.split(".")[0] == module.split(".")[0] and source != module:
                    return self.find(source, next(one.name for one in node.names if (one.asname or one.name) == name))
        return None

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = f"{module.replace('.', '/')}/__init__.py" in self._names
        parts = module.split(".")[: len(module.split(".")) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def fields(self, module: str, name: str) -> set[str]:
        """The fields of a class: annotated, or set in `__init__`; those of its bases in the same wheel as well."""
        found: set[str] = set()
        made = self.find(module, name)
        if isinstance(made, ast.ClassDef):
            for node in ast.walk(made):
                if isinstance(node, ast.AnnAssign | ast.Assign):
                    found |= _targets(node)
            for base in made.bases:
                found |= self.fields(self.home(module, name), ast.unparse(base).split("[")[0])
        return found

    def takes(self, target: str, positional: int, named: Set[str], *, is_open: bool = False) -> str:
        """Empty if `module:name` or `module:Class.method` takes these arguments; else what is wrong.

        Args:
            target: What is called.
            positional: The number of arguments without a name.
            named: The names of the others.
            is_open: Whether there may be more.
        """
        module, _, path = target.partition(":")
        owner, _, name = path.rpartition(".")
        made = self.method(module, owner, name) if owner else self.find(module, path)
        if isinstance(made, ast.ClassDef):
            init = self.method(module, path, "__init__")
            unknown = set[str]() if init else named - self.fields(module, path)
            if init is None:
                return f"{target} has no {', '.join(sorted(unknown))}" if unknown else ""
            made, owner = init, path
        if not isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef):
            return f"{target} is not there"
        is_bound = bool(owner) and "staticmethod" not in map(ast.unparse, made.decorator_list)
        wrong = _misfit(made.args, is_bound, positional, named, is_open)
        return f"{target}({ast.unparse(made.args)}) {wrong}" if wrong else ""

    def method(self, module: str, owner: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """A method of a class, or of its bases in the same wheel."""
        made = self.find(module, owner)
        if not isinstance(made, ast.ClassDef):
            return None
        for node in made.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return node
        # A base is looked for where the class is, which may be another module than the one it was asked from.
        home = self.home(module, owner)
        found = (self.method(home, ast.unparse(base).split("[")[0], name) for base in made.bases)
        return next((one for one in found if one), None)

    def home(self, module: str, name: str) -> str:
        """The module in which a name is defined."""
        for node in _statements(self.module(module)):
            if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
                source = self._source(module, node)
                if source.split(".")[0] == module.split(".")[0] and source != module:
                    return self.home(source, name)
        return module


def _misfit(given: ast.arguments, is_bound: bool, positional: int, named: Set[str], is_open: bool) -> str:
    """What a function does not take, or lacks."""
    places = [one.arg for one in [*given.posonlyargs, *given.args]][is_bound:]
    only_named = [one.arg for one in given.kwonlyargs]
    if positional > len(places) and given.vararg is None:
        return f"takes no {positional} arguments without a name"
    unknown = named - {*places[positional:], *only_named}
    if unknown and given.kwarg is None:
        return f"does not take {', '.join(sorted(unknown))}"
    required = {*places[positional : len(places) - len(given.defaults)]}
    required |= {one for one, default in zip(only_named, given.kw_defaults, strict=True) if default is None}
    missing = required - named
    return f"needs {', '.join(sorted(missing))}" if missing and not is_open else ""


def _statements(tree: ast.Module | None) -> Iterator[ast.stmt]:
    waiting: list[ast.stmt] = list(tree.body) if tree else []
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If):
            waiting += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            waiting += [*node.body, *node.orelse, *(one for handler in node.handlers for one in handler.body)]


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    mine = (one for one in targets if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name))
    return names | {one.attr for one in mine if isinstance(one.value, ast.Name) and one.value.id == "self"}
