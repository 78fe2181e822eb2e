"""What is compared with the first steps of a run."""

from __future__ import annotations

from turnsmith.rollout.episode_summary import EpisodeSummary, drift_metrics


def test_lengths_are_told_by_their_quantiles() -> None:
    episodes = [EpisodeSummary(f"{n}", "g", 0.0, None, tokens=n, has_format_problem=False) for n in range(1, 102)]
    assert drift_metrics(episodes, has_calls=False) == {"length/p10": 11, "length/p50": 51, "length/p90": 91}
    assert drift_metrics(episodes[:1], has_calls=False) == {"length/p10": 1, "length/p50": 1, "length/p90": 1}
