"""Reading a Google-style docstring: what the function does, and what each argument means."""

from __future__ import annotations

import inspect
import re

_ARGUMENTS = re.compile(r"^(args|arguments|parameters):\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The summary, and a description for each argument that has one.

    Example:
        >>> read_docstring('''Find orders.
        ...
        ... Args:
        ...     customer: Who bought,
        ...         by name.
        ...     limit (int): How many.
        ... ''')
        ('Find orders.', {'customer': 'Who bought, by name.', 'limit': 'How many.'})
    """
    lines = inspect.cleandoc(text or "").splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _ARGUMENTS.match(line):
            break
        summary.append(line.strip())
    start = next((number for number, line in enumerate(lines) if _ARGUMENTS.match(line)), len(lines))
    return " ".join(summary), _arguments(lines[start + 1 :])


def _arguments(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name, margin = "", 0
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0:  # the next section
            break
        margin = margin or indent
        entry = _ENTRY.match(line.strip()) if indent <= margin else None
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
