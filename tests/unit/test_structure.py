"""The structure of the package: no import circles, and no public name with two meanings."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import turnsmith

PACKAGE = Path(turnsmith.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    parts = ("turnsmith", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): ast.parse(file.read_text()) for file in FILES}


def imported_by(module: str) -> set[str]:
    """The modules of ours that a module imports, anywhere in it, also for type checkers alone."""
    found: set[str] = set()
    pending: list[ast.AST] = [MODULES[module]]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        pending += ast.iter_child_nodes(node)
    # A package that imports its own submodules, to export their names, is not one of its importers' circles.
    return {name for name in found & MODULES.keys() if name != module and not module.startswith(f"{name}.")}


def circles() -> list[list[str]]:
    """Groups of modules that import each other (Tarjan's strongly connected components)."""
    graph = {module: imported_by(module) for module in MODULES}
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            group = [stack.pop()]
            while group[-1] != module:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for module in MODULES:
        if module not in number:
            visit(module)
    return found


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles() == []


def test_a_circle_would_be_found() -> None:
    name = "turnsmith.errors"
    before = MODULES[name]
    MODULES[name] = ast.parse("def late():\n    from turnsmith.importing import import_object\n")
    try:
        assert circles() == [["turnsmith.errors", "turnsmith.importing"]]
    finally:
        MODULES[name] = before


def test_no_public_name_is_defined_twice() -> None:
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in MODULES.items():
        for node in tree.body:
            is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if is_definition and not node.name.startswith("_"):
                homes[node.name].add(module)
    assert {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1} == {}
