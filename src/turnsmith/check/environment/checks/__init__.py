"""The checks of an environment, by theme; `CHECKS` has them in the order in which they run."""

from __future__ import annotations

from turnsmith.check.environment.checks import chat, faults, learning, limits, repeats, settings
from turnsmith.check.environment.subject import EnvironmentCheck

CHECKS: tuple[EnvironmentCheck, ...] = (
    repeats.check_same_opening,
    faults.check_any_text,
    repeats.check_same_episode,
    repeats.check_interleaved,
    limits.check_many_at_once,
    limits.check_times,
    limits.check_tokens,
    faults.check_faults,
    faults.check_code_tools,
    learning.check_told_tools,
    learning.check_learnable,
    learning.check_tool_calls,
    learning.check_staleness,
    settings.check_held_out,
    settings.check_space,
    settings.check_places,
    chat.check_template,
    chat.check_stop_token,
    chat.check_call_format,
    chat.check_sampling,
)
