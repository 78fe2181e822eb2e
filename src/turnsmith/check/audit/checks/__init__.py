"""The checks of the audit, in the order in which they are shown.

What failed is proven: an episode shows it, and nobody means it to be so. A warning is for a person's judgment: what it
says is so, and may be meant.
"""

from __future__ import annotations

from turnsmith.check.audit.checks import attempts, episodes, resets, right, rows, undeserved
from turnsmith.check.environment.subject import EnvironmentCheck

AUDIT: tuple[EnvironmentCheck, ...] = (
    right.check_right_is_paid,
    undeserved.check_no_skill_is_paid,
    undeserved.check_no_start_is_open,
    undeserved.check_nothing_is_paid_more,
    undeserved.check_hedges_are_not_paid,
    undeserved.check_near_is_not_paid,
    undeserved.check_steps_are_needed,
    right.check_writing,
    episodes.check_answers_are_not_run,
    episodes.check_scoring_does_not_raise,
    episodes.check_noise,
    episodes.check_answer_is_not_shown,
    rows.check_missing_answers,
    episodes.check_starts,
    resets.check_reset_again,
    episodes.check_episodes_end,
    attempts.check_attempts,
    attempts.check_answers_of_the_model,
)
