"""What one step says of itself: the flat record that goes to the metrics file, the console and `metrics_history`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from turnwise.trajectory import Outcome, Trajectory

_FROM_VERL = {
    "entropy": "actor/entropy",
    "kl": "actor/ppo_kl",
    "policy_loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "clip_fraction": "actor/pg_clipfrac",
    "value_loss": "critic/vf_loss",
    "tokens/prompt": "prompt_length/mean",
    "tokens/response": "response_length/mean",
    "rollout_diff/mean": "training/rollout_probs_diff_mean",
    "rollout_diff/max": "training/rollout_probs_diff_max",
    "advantage/max": "critic/advantages/max",
    "advantage/min": "critic/advantages/min",
    "time/step": "timing_s/step",
    "time/generate": "timing_s/gen",
    "time/old_log_prob": "timing_s/old_log_prob",
    "time/ref": "timing_s/ref",
    "time/values": "timing_s/values",
    "time/advantage": "timing_s/adv",
    "time/update_critic": "timing_s/update_critic",
    "time/update_actor": "timing_s/update_actor",
    "time/sync_weights": "timing_s/update_weights",
    "time/checkpoint": "timing_s/save_checkpoint",
}


@dataclass
class EpisodeReport:
    """How the episodes of a step went; reports of several workers add up."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    tool_calls: int = 0
    tool_failures: int = 0
    """Calls in which the tool failed; a call that the tool refused is not one."""
    format_problems: int = 0
    """Turns in which a tool call could not be read."""
    first_error: str = ""

    def __add__(self, other: EpisodeReport) -> EpisodeReport:
        return EpisodeReport(
            self.outcomes + other.outcomes,
            self.rewards + other.rewards,
            self.turns + other.turns,
            self.tool_calls + other.tool_calls,
            self.tool_failures + other.tool_failures,
            self.format_problems + other.format_problems,
            self.first_error or other.first_error,
        )


def report_of(trajectories: list[Trajectory]) -> EpisodeReport:
    """Sum up finished episodes; rewards and turns count only those that may be trained on."""
    report = EpisodeReport()
    for trajectory in trajectories:
        outcome = trajectory.outcome or Outcome.ENGINE_FAILED
        report.outcomes[outcome.value] += 1
        if outcome.is_behaviour:
            report.rewards.append(trajectory.total_reward)
            report.turns.append(trajectory.num_turns)
        for info in trajectory.infos:
            calls = info.get("tool_calls", ())
            report.tool_calls += len(calls)
            report.tool_failures += sum("failure" in call for call in calls)
            report.format_problems += "format_problem" in info
        report.first_error = report.first_error or trajectory.error
    return report


def step_record(step: int, epoch: int, verl_metrics: dict[str, Any], episodes: EpisodeReport) -> dict[str, Any]:
    """One flat record for a step."""
    record: dict[str, Any] = {"step": step, "epoch": epoch}
    rewards = episodes.rewards
    if rewards:
        mean = sum(rewards) / len(rewards)
        record |= {
            "reward/mean": mean,
            "reward/min": min(rewards),
            "reward/max": max(rewards),
            "reward/std": (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5,
            "turns/mean": sum(episodes.turns) / len(episodes.turns),
        }
    record["episodes/total"] = sum(episodes.outcomes.values())
    record |= {f"episodes/{outcome}": count for outcome, count in sorted(episodes.outcomes.items())}
    if episodes.tool_calls or episodes.format_problems:
        record["tools/calls"] = episodes.tool_calls
        record["tools/failures"] = episodes.tool_failures
        record["tools/format_problems"] = episodes.format_problems
    record |= {ours: float(verl_metrics[theirs]) for ours, theirs in _FROM_VERL.items() if theirs in verl_metrics}
    return record
