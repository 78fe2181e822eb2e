"""One check in each module; `CHECKS` has them in the order in which they run."""

from __future__ import annotations

from turnsmith.check.checks.any_text import ANY_TEXT
from turnsmith.check.checks.call_format import CALL_FORMAT
from turnsmith.check.checks.ceiling import CEILING
from turnsmith.check.checks.disk import DISK
from turnsmith.check.checks.equivalent_answers import EQUIVALENT_ANSWERS
from turnsmith.check.checks.exploits import EXPLOIT_CHECK
from turnsmith.check.checks.faults import FAULTS
from turnsmith.check.checks.floor import FLOOR_CHECK
from turnsmith.check.checks.held_out import HELD_OUT
from turnsmith.check.checks.interleaved import INTERLEAVED
from turnsmith.check.checks.many_at_once import MANY_AT_ONCE
from turnsmith.check.checks.model import MODEL
from turnsmith.check.checks.places import PLACES
from turnsmith.check.checks.same_episode import SAME_EPISODE
from turnsmith.check.checks.same_opening import SAME_OPENING
from turnsmith.check.checks.sampling import SAMPLING
from turnsmith.check.checks.sandbox import SANDBOX
from turnsmith.check.checks.scorer_noise import SCORER_NOISE
from turnsmith.check.checks.staleness import STALENESS
from turnsmith.check.checks.stop_token import STOP_TOKEN
from turnsmith.check.checks.template import TEMPLATE
from turnsmith.check.checks.times import TIMES
from turnsmith.check.checks.tokens import TOKENS
from turnsmith.check.checks.told_tools import TOLD_TOOLS
from turnsmith.check.checks.tool_calls import TOOL_CALLS
from turnsmith.check.finding import Check

CHECKS: tuple[Check, ...] = (
    SAME_OPENING,
    ANY_TEXT,
    SAME_EPISODE,
    INTERLEAVED,
    MANY_AT_ONCE,
    TIMES,
    TOKENS,
    FAULTS,
    SANDBOX,
    TOLD_TOOLS,
    MODEL,
    TOOL_CALLS,
    STALENESS,
    HELD_OUT,
    DISK,
    PLACES,
    TEMPLATE,
    STOP_TOKEN,
    CALL_FORMAT,
    SAMPLING,
    CEILING,
    FLOOR_CHECK,
    EXPLOIT_CHECK,
    EQUIVALENT_ANSWERS,
    SCORER_NOISE,
)
