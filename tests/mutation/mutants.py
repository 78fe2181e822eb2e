"""Find the single changes that can be made to a Python file: one mutant each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SYMBOLS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitOr: "|",
    ast.BitAnd: "&",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.And: "and",
    ast.Or: "or",
}
LOGGERS = {"log", "logger", "logging", "_log", "_logger"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    """Path below `src/turnsmith`."""
    line: int
    line_text: str
    """The original line without indentation: unlike its number it stays the same when other lines change."""
    before: str
    after: str
    start: int
    stop: int
    """The span that is replaced, in bytes of the source."""
    replacement: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.replacement.encode() + source[self.stop :]

    @property
    def key(self) -> str:
        """Its name in a file of verdicts."""
        return f"{self}  at {self.start}: {self.line_text}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  `{_short(self.before)}` -> `{_short(self.after)}`"


def find_mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in the order of its lines.

    Left out: annotations, decorators, docstrings, `__all__`, imports for type checkers, error messages, logging, and
    `zip(strict=...)`.
    """
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return sorted(dict.fromkeys(finder.mutants), key=lambda mutant: (mutant.line, mutant.start))


def statement_lines(source: bytes, line: int) -> range | None:
    """The lines of the innermost statement at `line`; None if it is run at import, outside every function."""
    found: ast.stmt | None = None
    in_function = False
    for node in ast.walk(ast.parse(source)):  # Outer nodes come before those inside them.
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
            in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return range(found.lineno, (found.end_lineno or found.lineno) + 1) if found is not None and in_function else None


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]
        self.mutants: list[Mutant] = []

    def replace(self, node: ast.expr | ast.stmt, before: str, after: str, replacement: str | None = None) -> None:
        """Add the mutant that replaces `node` with `replacement`, by default with `after`."""
        start, stop = self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)
        line = self.lines[node.lineno - 1].decode().strip()
        text = after if replacement is None else replacement
        self.mutants.append(Mutant(self.file, node.lineno, line, before, after, start, stop, text))

    def _offset(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self.starts[line - 1] + column

    def with_operator(self, node: ast.expr | ast.stmt, place: str, old: ast.AST, new: type[ast.AST]) -> None:
        """Add the mutant with another operator at `place`, such as `op` or `ops.1`."""
        changed = copy.deepcopy(node)
        name, _, index = place.partition(".")
        if index:
            getattr(changed, name)[int(index)] = new()
        else:
            setattr(changed, name, new())
        text = ast.unparse(changed)
        assign = "=" if isinstance(node, ast.AugAssign) else ""
        before, after = (f"{SYMBOLS[kind]}{assign}" for kind in (type(old), new))
        self.replace(node, before, after, text if isinstance(node, ast.stmt) else f"({text})")

    def negate(self, test: ast.expr) -> None:
        text = ast.unparse(test)
        self.replace(test, text, f"(not ({text}))")

    # Parts that are left out.

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if not any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
            for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
                self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if "__all__" not in map(ast.unparse, node.targets):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "zip":
            node.keywords = []  # `strict` is an assertion
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Not visited: Python 3.11 does not record where the parts of an f-string are."""

    # Parts that are changed.

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            return
        self.negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_logging(node.value):
            return
        self.replace(node, ast.unparse(node), "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.replace(node, ast.unparse(node), "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            if ast.unparse(node.value) != "None":
                self.replace(node.value, ast.unparse(node.value), "None")
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            self.with_operator(node, f"ops.{index}", operator, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp | ast.AugAssign) -> None:
        if type(node.op) in ARITHMETIC:
            self.with_operator(node, "op", node.op, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    visit_AugAssign = visit_BinOp  # noqa: N815

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.with_operator(node, "op", node.op, ast.Or if isinstance(node.op, ast.And) else ast.And)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.replace(node, "not", "", f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        for other in _other_values(node.value):
            self.replace(node, repr(node.value), repr(other), f"({other!r})")


def _other_values(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield value - 1


def _is_logging(node: ast.expr) -> bool:
    if isinstance(node, ast.Await):
        node = node.value
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and ast.unparse(function.value).split(".")[-1] in LOGGERS


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."
