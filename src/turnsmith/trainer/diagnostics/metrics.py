"""The metrics of one step: a flat record for the metrics file, the console and `metrics_history`."""

from __future__ import annotations

from typing import Any

from turnsmith.rollout.episode_report import EpisodeReport, report_of
from turnsmith.rollout.episode_summary import drift_metrics

__all__ = ["EpisodeReport", "report_of", "step_record"]

_FROM_VERL = {
    "entropy": "actor/entropy",
    "kl": "actor/ppo_kl",
    "kl/loss": "actor/kl_loss",
    "kl/reward": "actor/reward_kl_penalty",
    "kl/coef": "actor/reward_kl_penalty_coeff",
    "policy_loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "clip_fraction": "actor/pg_clipfrac",
    "value_loss": "critic/vf_loss",
    "value_clip_fraction": "critic/vf_clipfrac",
    "value_explained": "critic/vf_explained_var",
    "tokens/prompt": "prompt_length/mean",
    "tokens/response": "response_length/mean",
    "rollout_diff/mean": "training/rollout_probs_diff_mean",
    "rollout_diff/max": "training/rollout_probs_diff_max",
    "correction/mean": "rollout_corr/rollout_is_mean",
    "correction/max": "rollout_corr/rollout_is_max",
    "correction/share": "rollout_corr/rollout_is_ratio_fraction_high",
    "staleness/mean": "training/off_policy/trajectory_staleness_worst/mean",
    "staleness/max": "training/off_policy/trajectory_staleness_worst/max",
    "advantage/max": "critic/advantages/max",
    "advantage/min": "critic/advantages/min",
    "perf/tokens_per_second": "perf/throughput",
    "perf/mfu": "perf/mfu/actor",
    "perf/memory_gib": "actor/perf/max_memory_allocated_gb",
    "perf/memory_reserved_gib": "actor/perf/max_memory_reserved_gb",
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


def step_record(step: int, epoch: int, verl_metrics: dict[str, Any], episodes: EpisodeReport) -> dict[str, Any]:
    """The flat record of a step."""
    record: dict[str, Any] = {"step": step, "epoch": epoch, **episodes.metrics()}
    record |= drift_metrics(episodes.summaries, has_calls=bool(episodes.tool_calls or episodes.format_problems))
    record |= {ours: float(verl_metrics[theirs]) for ours, theirs in _FROM_VERL.items() if theirs in verl_metrics}
    # verl reports 0 for what it cannot measure: memory of a CPU, MFU on a GPU that it does not know.
    return {name: value for name, value in record.items() if value or not name.startswith("perf/")}
