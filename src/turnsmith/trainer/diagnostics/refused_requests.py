"""Requests of agents that got an error: an agent that goes on all the same earns what the model had no part in."""

from __future__ import annotations

from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_report import refusal_warning
from turnsmith.trainer.diagnostics.context import StepContext


def refused_requests(context: StepContext) -> RunWarning | None:
    """The gateway refused what agents asked for."""
    return refusal_warning(context.report, int(context.record["step"]))
