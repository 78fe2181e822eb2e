"""What a program of tests needs from an answer, read from its text; and why some programs cannot be run."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnsmith.errors import EnvironmentFailure

_OUTPUT = {"capsys", "redirect_stderr", "redirect_stdout", "stdin", "stdout"}
"""Names by which tests read a program's output, or give it input."""
_BUILTINS = set(dir(builtins))


@dataclass(frozen=True, slots=True)
class TestProgram:
    """A program of tests."""

    __test__ = False
    code: str
    names: tuple[str, ...]
    """Names that it uses and the answer has to define."""
    modules: tuple[str, ...]
    """Modules of the standard library that it uses without importing them, as answers do."""


@lru_cache(maxsize=1024)
def read_tests(code: str) -> TestProgram:
    """What a program of tests needs.

    Raises:
        EnvironmentFailure: It is no Python, or asks for what one process cannot ask of another.

    Example:
        >>> read_tests("assert math.isclose(half(5), 2.5)")
        TestProgram(code='assert math.isclose(half(5), 2.5)', names=('half',), modules=('math',))
    """
    try:
        tree = ast.parse(code)
        table = symtable.symtable(code, "tests.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise EnvironmentFailure(f"The tests are no Python program: {error}.") from None
    used = set(_global_names(table))
    defined = {symbol.get_name() for symbol in table.get_symbols() if _is_bound(symbol)}
    free = used - defined - _BUILTINS
    modules = {name for name in free & sys.stdlib_module_names if _is_only_dotted(tree, name)}
    names = free - modules or _called_builtins(tree)
    problem = _problem(tree, names, used)
    if problem:
        raise EnvironmentFailure(f"The tests {problem}.")
    return TestProgram(code, tuple(sorted(names)), tuple(sorted(modules)))


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that any part of the program looks up in its module."""
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _global_names(child)


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _is_only_dotted(tree: ast.Module, name: str) -> bool:
    """Whether a name is only used as in `name.something`."""
    dotted = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return all(id(node) in dotted for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name)


def _called_builtins(tree: ast.Module) -> set[str]:
    """The builtin that tests call if they call nothing else, as in `sum(10, 15)`: the answer has to define it."""
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return called & _BUILTINS if len(called) == 1 else set()


def _problem(tree: ast.Module, names: set[str], used: set[str]) -> str:
    """Why these tests cannot be run; empty if they can."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name not in used:
            return f"define {node.name} and never call it: add a line that does"
    for node in ast.walk(tree):
        problem = _problem_of(node, names)
        if problem:
            return problem
    return "" if names else "use nothing that an answer could define: call its functions by their names"


def _problem_of(node: ast.AST, names: set[str]) -> str:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
        foreign = [module for module in imported if module.partition(".")[0] not in sys.stdlib_module_names]
        if foreign:
            return f"import {foreign[0]}: they have the standard library, and the answer's names without an import"
    if isinstance(node, ast.Await):
        return "await something: an answer's coroutines stay in its own process"
    if isinstance(node, ast.ExceptHandler) and node.type is not None and _names_in(node.type) & names:
        return f"catch {_one_of(node.type, names)}: an exception of the answer's own class arrives as its builtin base"
    if isinstance(node, ast.ClassDef) and any(_names_in(base) & names for base in node.bases):
        return f"derive {node.name} from a class of the answer, which stays in its own process"
    kind = _asked_kind(node)
    if kind is not None and _names_in(kind) & names:
        return f"ask whether something is a {_one_of(kind, names)}, a class of the answer, which is in its own process"
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if name in _OUTPUT:
        return f"use {name}: what an answer prints is not seen, so test what its functions return"
    return ""


def _asked_kind(node: ast.AST) -> ast.expr | None:
    """The class in `isinstance(one, kind)`."""
    is_question = isinstance(node, ast.Call) and _names_in(node.func) & {"isinstance", "issubclass"}
    return node.args[-1] if isinstance(node, ast.Call) and is_question and node.args else None


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _one_of(node: ast.AST, names: set[str]) -> Any:
    return min(_names_in(node) & names)
