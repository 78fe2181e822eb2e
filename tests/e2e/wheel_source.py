"""Reads definitions from a wheel's source without importing it: CUDA builds cannot be imported on a CPU."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
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
        path = name.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if file in self._names:
                return ast.parse(self._archive.read(file))
        return None

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
                found |= self.fields(module, ast.unparse(base).split("[")[0])
        return found

    def accepts(self, module: str, owner: str, call: ast.Call) -> str:
        """Empty if the method that `call` names takes its arguments; else what it does not take."""
        assert isinstance(call.func, ast.Attribute)
        made = self.find(module, owner)
        methods = made.body if isinstance(made, ast.ClassDef) else []
        for node in methods:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == call.func.attr:
                places = [one.arg for one in [*node.args.posonlyargs, *node.args.args]][1:]
                names = {*places, *(one.arg for one in node.args.kwonlyargs)}
                too_many = len(call.args) > len(places)
                unknown = [one.arg for one in call.keywords if one.arg not in names and node.args.kwarg is None]
                return f"{node.name}({ast.unparse(node.args)})" if too_many or unknown else ""
        return f"{owner} has no method {call.func.attr}"


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
