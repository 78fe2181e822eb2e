"""What a check is, and what it found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    from turnsmith.check.subject import Subject

Status = Literal["passed", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw.

    Example:
        >>> Finding("failed", "8 of 8 starts differ", fix="Use the seed that `reset` gets.").status
        'failed'
    """

    status: Status
    saw: str
    """What was measured, or why the check was skipped, in one sentence."""
    fix: str = ""
    """What to do about it; empty if it passed."""
    episodes: Sequence[Trajectory] = ()
    """The episodes that show it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of an environment, with a model and the settings of a run."""

    name: str
    """A few words, such as `same start, same opening`; names the check on the command line."""
    ran: str
    """What it runs, in one sentence."""
    why: str
    """What it prevents, in one sentence, with the kind of loss."""
    function: Callable[[Subject], Awaitable[Finding]]
    quick: bool = False
    """Whether `RayPPOTrainer.fit` runs it before training: it takes a second or two, and needs no model."""
    audit: bool = False
    """Whether only `--audit` runs it."""
    plays: bool = True
    """Whether it needs episodes that open."""
