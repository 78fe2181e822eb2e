"""Writes docs/reference/specification.md from its template and the table of tests/specification.py.

Run, in the project's folder: python -m docs.hooks.specification
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.specification import BLOCKS, EVERYWHERE, RUNNABLE, Block, Replacement

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "docs" / "templates" / "specification.md.in"
PAGE = ROOT / "docs" / "reference" / "specification.md"


def specification() -> str:
    """The page as Markdown."""
    typed = sum(block.kind == "as typed" for block in BLOCKS)
    counts = {
        "blocks": len(BLOCKS),
        "runnable": len(RUNNABLE),
        "typed": typed,
        "refused": len(RUNNABLE) - typed,
        "signatures": len(BLOCKS) - len(RUNNABLE),
        "executed": _table("block | begins with | its test asserts", map(_block, BLOCKS)),
        "replacements": _table("block | in the document | in the test | why", _replacements()),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, value in counts.items():
        text = text.replace(f"[[{name}]]", str(value))
    return text


def _block(block: Block) -> list[str]:
    how = "" if block.kind == "as typed" else f"**{block.kind}**: "
    return [block.name, _code(block.begins[:60]), how + block.shows]


def _replacements() -> list[list[str]]:
    def row(block: str, one: Replacement) -> list[str]:
        return [block, _code(one.old), _code(one.new) if one.new.strip() else "", one.why]

    rows = [row("every one", one) for one in EVERYWHERE]
    return rows + [row(block.name, one) for block in BLOCKS for one in block.own]


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`"


def _table(heads: str, rows: Iterable[list[str]]) -> str:
    lines = [f"| {heads} |", f"|{' --- |' * (heads.count('|') + 1)}"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


if __name__ == "__main__":
    PAGE.write_text(specification(), encoding="utf-8")
