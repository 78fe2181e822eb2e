"""Answers that are code: are they run where they are scored?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from turnsmith.check.audit.tracing import play_here, trace
from turnsmith.check.audit.writings import in_form
from turnsmith.check.environment.oracle import Task
from turnsmith.check.environment.subject import Subject
from turnsmith.errors import TurnsmithError

_FOLDERS = (
    "__import__('os').mkdir('{}')",
    "(lambda: __import__('os').mkdir('{}'))()",
    "$(mkdir {})",
    "`mkdir {}`",
)
_NUMBER = 7919
CALL = f"id({_NUMBER})"
"""Code so short that scorers of formulas take it for one."""


async def answer_that_is_run(
    subject: Subject, task: Task, forms: Sequence[str], play: Callable[[str], Awaitable[bool]]
) -> str | None:
    """An answer that was run when it was scored; empty if none was, None if none could be tried.

    Args:
        subject: What is audited.
        task: The start from which it is said.
        forms: How answers may be written.
        play: Plays an answer; returns False if there is no time left.
    """
    tried = False
    with tempfile.TemporaryDirectory(prefix="turnsmith-audit-") as folder:
        for form in forms:
            for number, code in enumerate(_FOLDERS):
                place = Path(folder) / f"made-{number}"
                answer = in_form(form, code.format(place))
                tried = await play(answer) or tried
                if place.exists():
                    return answer.replace(folder, "/tmp")
            if tried and task.is_text and await _is_called(subject, task, in_form(form, CALL)):
                return in_form(form, CALL)
    return "" if tried else None


async def _is_called(subject: Subject, task: Task, action: str) -> bool:
    """Whether `CALL`, which stands in this action, is called when it is scored."""
    called, before = list[FrameType](), sys.getprofile()

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function is id and _NUMBER in frame.f_code.co_consts:
            called.append(frame)

    try:
        await play_here(subject, task, [action])
        sys.setprofile(note)
        await trace(subject, task, [action])
    except (TurnsmithError, OSError, ValueError):
        pass
    finally:
        sys.setprofile(before)
    return bool(called)
