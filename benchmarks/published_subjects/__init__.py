"""What a user of each project with a published fault would give to `turnsmith check`, and what shows the fault.

A module for each project, with `SUBJECTS`: a `Subject` for each id of `published_faults.toml`. It runs in the folder
of the project's sources, before or after the mend, in a Python that has what the fault needs and the core of turnsmith.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subject:
    """What is checked for one fault, as somebody would type it who has never heard of the fault."""

    words: tuple[str, ...]
    """Of `turnsmith check WORDS --audit`. A file `rows.jsonl` holds `rows`."""
    shows: Callable[[], bool]
    """Whether the fault is there, by a direct call of the project's code: the behaviour that its thread describes."""
    rows: Callable[[], list[dict[str, Any]]] | None = None
    """The rows of `--data rows.jsonl`: 16 at least where that can be had, with no row made so that the fault shows."""
