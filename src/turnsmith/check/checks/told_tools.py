"""Tools whose descriptions leave something out."""

from __future__ import annotations

from turnsmith.check.finding import Check, Finding
from turnsmith.check.subject import Subject
from turnsmith.tools.tool import tool_methods, untold_tools

_MOST_SHOWN = 3


async def check_told_tools(subject: Subject) -> Finding:
    """Look at the docstrings and type hints of the environment's `@tool` methods."""
    kinds = [] if subject.is_agent else [spec.load() for spec in subject.environment.each()]
    tools = sum(len(tool_methods(kind)) for kind in kinds)
    if not tools:
        return Finding("skipped", "The environment has no @tool methods.")
    untold = [sentence for kind in kinds for sentence in untold_tools(kind)]
    if untold:
        more = f" And {len(untold) - _MOST_SHOWN} more." if len(untold) > _MOST_SHOWN else ""
        fix = "Add type hints and docstrings: the model is told nothing else about a tool."
        return Finding("warning", " ".join(untold[:_MOST_SHOWN]) + more, fix)
    return Finding("passed", f"All {tools} have a docstring and type hints." if tools > 1 else "It is complete.")


TOLD_TOOLS = Check(
    "tools are described",
    "Looks at the docstrings and type hints of the @tool methods.",
    "A model that is told neither what a tool does nor what it takes calls it wrongly, or never.",
    check_told_tools,
    quick=True,
    plays=False,
)
