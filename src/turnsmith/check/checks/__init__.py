"""One check in each module; `CHECKS` has them in the order in which they run."""

from __future__ import annotations

from turnsmith.check.checks.same_opening import SAME_OPENING
from turnsmith.check.finding import Check

CHECKS: tuple[Check, ...] = (SAME_OPENING,)
