"""How a number of episodes went, in counts and lists that add up; the same for a step of training and an evaluation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from turnsmith.trajectory import Decision, Outcome, Trajectory

_EXAMPLES = 3


@dataclass
class EpisodeReport:
    """How the episodes of a step or an evaluation went; reports of several workers add up."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that did not do what was asked: wrong arguments, refused by the tool, or the tool failed."""
    tool_failures: int = 0
    """Calls in which the tool failed; a call that the tool refused is not one."""
    format_problems: int = 0
    """Turns in which a tool call could not be read."""
    first_error: str = ""
    groups: dict[str, list[float]] = field(default_factory=dict)
    """The rewards of each group's episodes, by group id; none for a group whose episodes all failed."""
    cut_turns: int = 0
    """Turns that the model had not ended when they reached the most tokens they may have."""
    model_tokens: int = 0
    """Tokens that the model sampled, in episodes that may be trained on."""
    successes: int | None = None
    """Episodes that the environment calls a success in the `info` of their last turn; None: it never says."""
    conversations: dict[str, list[str]] = field(default_factory=dict)
    """The ids of episodes that are the same, word for word, by a hash of what was said; only those with turns."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The ids of the first few episodes of each outcome, of each group, and with `tool_failure`, `tool_error`,
    `format_problem` or `cut_turn`."""
    decisions: Counter[str] = field(default_factory=Counter)
    """Episodes by what the failure policy made of them."""
    retried: int = 0
    """Attempts that were retried."""

    def __repr__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())) or "no episodes"
        reward = f", reward {math.fsum(self.rewards) / len(self.rewards):.3g}" if self.rewards else ""
        return f"EpisodeReport({outcomes}{reward})"

    @property
    def compared_groups(self) -> dict[str, list[float]]:
        """The groups with at least two rewards, which can be compared; episodes without a group id are in none."""
        return {name: rewards for name, rewards in self.groups.items() if name and len(rewards) > 1}

    @property
    def constant_groups(self) -> list[str]:
        """The groups of these whose rewards are all the same."""
        return [name for name, rewards in self.compared_groups.items() if min(rewards) == max(rewards)]

    def __add__(self, other: EpisodeReport) -> EpisodeReport:
        return EpisodeReport(
            self.outcomes + other.outcomes,
            self.rewards + other.rewards,
            self.turns + other.turns,
            self.tool_calls + other.tool_calls,
            self.tool_errors + other.tool_errors,
            self.tool_failures + other.tool_failures,
            self.format_problems + other.format_problems,
            self.first_error or other.first_error,
            _joined(self.groups, other.groups),
            self.cut_turns + other.cut_turns,
            self.model_tokens + other.model_tokens,
            other.successes if self.successes is None else self.successes + (other.successes or 0),
            _joined(self.conversations, other.conversations),
            {name: ids[:_EXAMPLES] for name, ids in _joined(self.examples, other.examples).items()},
            self.decisions + other.decisions,
            self.retried + other.retried,
        )

    def metrics(self) -> dict[str, Any]:
        """The report as flat names and numbers, as they stand in a metrics file."""
        record: dict[str, Any] = {}
        if self.rewards:
            # Exact sums: episodes end in any order, and the same run again must report the same.
            mean = math.fsum(self.rewards) / len(self.rewards)
            record |= {
                "reward/mean": mean,
                "reward/min": min(self.rewards),
                "reward/max": max(self.rewards),
                "reward/std": (math.fsum((reward - mean) ** 2 for reward in self.rewards) / len(self.rewards)) ** 0.5,
                "turns/mean": sum(self.turns) / len(self.turns),
            }
            if self.successes is not None:
                record["success/mean"] = self.successes / len(self.rewards)
            if self.model_tokens:
                record["turns/cut"] = self.cut_turns / max(1, sum(self.turns))
        if self.compared_groups:
            record |= {"groups/total": len(self.groups), "groups/constant": len(self.constant_groups)}
        record["episodes/total"] = sum(self.outcomes.values())
        record |= {f"episodes/{outcome}": count for outcome, count in sorted(self.outcomes.items())}
        settled = {**self.decisions, Decision.RETRIED.value: self.retried, Decision.KEPT.value: 0}
        record |= {f"failures/{decision}": count for decision, count in sorted(settled.items()) if count}
        if self.tool_calls or self.format_problems:
            record["tools/calls"] = self.tool_calls
            record["tools/errors"] = self.tool_errors
            record["tools/failures"] = self.tool_failures
            record["tools/format_problems"] = self.format_problems
        return record


def report_of(trajectories: Iterable[Trajectory]) -> EpisodeReport:
    """Sum up finished episodes; rewards and turns count only those that may be trained on.

    Example:
        >>> won = Trajectory(actions=["a"], rewards=[1.0], outcome=Outcome.COMPLETED)
        >>> lost = Trajectory(outcome=Outcome.ENGINE_FAILED, error="out of memory")
        >>> report = report_of([won, lost])
        >>> report
        EpisodeReport(1 completed, 1 engine_failed, reward 1)
        >>> report.metrics()["reward/mean"], dict(report.outcomes), report.first_error
        (1.0, {'completed': 1, 'engine_failed': 1}, 'out of memory')
    """
    report = EpisodeReport()
    for trajectory in trajectories:
        outcome = trajectory.outcome or Outcome.ENGINE_FAILED
        report.outcomes[outcome.value] += 1
        group = report.groups.setdefault(trajectory.group_id, [])
        report.decisions[trajectory.decision.value] += 1
        report.retried += trajectory.attempt
        if trajectory.is_counted:
            group.append(trajectory.total_reward)
            _add_behaviour(report, trajectory)
        _add_calls(report, trajectory)
        report.first_error = report.first_error or trajectory.error
        _show(report, outcome.value, trajectory)
        _show(report, _group_key(trajectory.group_id), trajectory)
    return report


def group_examples(report: EpisodeReport, group: str) -> list[str]:
    """The ids of the first few episodes of a group."""
    return report.examples.get(_group_key(group), [])


def _add_behaviour(report: EpisodeReport, trajectory: Trajectory) -> None:
    report.rewards.append(trajectory.total_reward)
    report.turns.append(trajectory.num_turns)
    report.model_tokens += trajectory.tokens.mask.tobytes().count(1)
    cut = sum(turn.stop_reason == "length" for turn in trajectory.turns)
    report.cut_turns += cut
    if cut:
        _show(report, "cut_turn", trajectory)
    if trajectory.infos and "success" in trajectory.infos[-1]:
        report.successes = (report.successes or 0) + _is_true(trajectory.infos[-1]["success"])
    if trajectory.actions:
        said = repr((trajectory.messages, trajectory.actions)).encode(errors="surrogatepass")
        name = blake2b(said, digest_size=8).hexdigest()
        report.conversations.setdefault(name, []).append(trajectory.episode_id)


def _add_calls(report: EpisodeReport, trajectory: Trajectory) -> None:
    for info in trajectory.infos:
        calls = info.get("tool_calls", ())
        errors = sum(not call.get("ok", True) for call in calls)
        failures = sum("failure" in call for call in calls)
        report.tool_calls += len(calls)
        report.tool_errors += errors
        report.tool_failures += failures
        report.format_problems += "format_problem" in info
        seen = {"tool_error": errors, "tool_failure": failures, "format_problem": "format_problem" in info}
        for reason in (reason for reason, found in seen.items() if found):
            _show(report, reason, trajectory)


def _is_true(value: Any) -> bool:
    try:
        return bool(value)
    except Exception:  # noqa: BLE001  (an array, or an object of the user's own: neither is a success)
        return False


def _show(report: EpisodeReport, reason: str, trajectory: Trajectory) -> None:
    shown = report.examples.setdefault(reason, [])
    if len(shown) < _EXAMPLES and trajectory.episode_id not in shown:
        shown.append(trajectory.episode_id)


def _group_key(group: str) -> str:
    return f"group {group}"


def _joined(ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: ours.get(name, []) + theirs.get(name, []) for name in ours | theirs}
