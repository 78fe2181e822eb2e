"""Counts and lists that sum up finished episodes, for a training step and an evaluation alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.episode_summary import EpisodeSummary
from turnsmith.rollout.same_failure import NOT_RETRIED
from turnsmith.trajectory import Decision, Outcome, Trajectory, is_success

_MAX_EXAMPLES = 3
_Counts = TypeVar("_Counts")


class MixedEpisode(NamedTuple):
    """One episode in an environment of a mix."""

    reward: float | None
    """None: it does not count."""
    success: bool | None
    """What its last `info` says; None: nothing."""


@dataclass
class ToolCounts:
    """What became of the tool calls."""

    calls: int = 0
    errors: int = 0
    """Calls that did not succeed: invalid arguments, refused by the tool, or the tool failed."""
    failures: int = 0
    """Calls in which the tool failed; a call that the tool refused does not count."""
    format_problems: int = 0
    """Turns with a tool call that could not be parsed."""


@dataclass
class EpisodeReport:
    """How the episodes of a step or an evaluation went; reports of several workers are added with `+`."""

    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    continuations: Counter[str] = field(default_factory=Counter[str])
    """Turns of agents by how their prompts came about, see `Continuation`."""
    branches: int = 0
    """Token sequences beyond one in each episode, of agents that rewrote their history or had several conversations."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests of agents that got an error for what they asked for, by its sentence."""
    tools: ToolCounts = field(default_factory=ToolCounts)
    first_error: str = ""
    groups: dict[str, list[float]] = field(default_factory=dict)
    """The rewards of each group's episodes, by group id; empty for a group whose episodes all failed."""
    cut_turns: int = 0
    """Turns that were cut off at their token limit."""
    model_tokens: int = 0
    """Sampled tokens in episodes that count."""
    successes: int | None = None
    """Episodes with a true `success` in the `info` of their last turn; None: no episode has the key."""
    conversations: dict[str, list[str]] = field(default_factory=dict)
    """Episode ids by a hash of the conversation: identical episodes share an entry. Only those with turns."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The first few episode ids of each outcome, and with a `tool_failure`, `tool_error`, `format_problem`, `cut_turn`
    or request that was `refused`."""
    group_examples: dict[str, list[str]] = field(default_factory=dict)
    """The first few episode ids of each group."""
    decisions: Counter[str] = field(default_factory=Counter)
    """Episodes by the failure policy's decision."""
    filtered_groups: list[str] = field(default_factory=list)
    """Groups that were replaced because their rewards were equal; they count in rewards and turns all the same."""
    retried: int = 0
    """Attempts that were retried."""
    not_retried: int = 0
    """Episodes that had retries left, when every attempt so far had failed in the same way."""
    environments: dict[str, list[MixedEpisode]] = field(default_factory=dict)
    """The episodes of each environment, by its name, if the run has a mix of them."""
    summaries: list[EpisodeSummary] = field(default_factory=list[EpisodeSummary])
    """One of each episode that counts, for the watch for drift."""
    others: Counter[str] = field(default_factory=Counter)
    """Answers and tokens of other players: `user/replies`, `user/tokens`."""
    waits: Counter[str] = field(default_factory=Counter)
    """Milliseconds that calls of the episodes waited for their turn, by what they waited for."""

    def __repr__(self) -> str:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())) or "no episodes"
        reward = f", reward {math.fsum(self.rewards) / len(self.rewards):.3g}" if self.rewards else ""
        return f"EpisodeReport({outcomes}{reward})"

    @property
    def ends(self) -> str:
        """How the episodes ended, in words: `30 completed, 2 environment_failed`."""
        return ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())

    @property
    def compared_groups(self) -> dict[str, list[float]]:
        """The groups with at least two rewards; episodes without a group id are in none."""
        return {name: rewards for name, rewards in self.groups.items() if name and len(rewards) > 1}

    @property
    def constant_groups(self) -> list[str]:
        """Those of `compared_groups` whose rewards are all the same."""
        return [name for name, rewards in self.compared_groups.items() if min(rewards) == max(rewards)]

    @property
    def waiting_seconds(self) -> float:
        """Seconds that the calls of an episode waited for a thread, a sandbox or a worker, on average."""
        return sum(self.waits.values()) / 1000 / max(1, sum(self.outcomes.values()))

    def successes_by_environment(self) -> dict[str, tuple[int, int]]:
        """Successful episodes and all that count, of each environment of a mix.

        An environment that reports `success` in its last `info` decides itself; of others, a reward above 0 is one.
        """
        counts: dict[str, tuple[int, int]] = {}
        for name, episodes in self.environments.items():
            counted = [episode for episode in episodes if episode.reward is not None]
            reports = any(episode.success is not None for episode in counted)
            won = [is_success(episode.success, episode.reward or 0.0, by_info=reports) for episode in counted]
            counts[name] = sum(won), len(won)
        return counts

    def __add__(self, other: EpisodeReport) -> EpisodeReport:
        total = _added(self, other)
        total.first_error = self.first_error or other.first_error
        for examples in (total.examples, total.group_examples):
            examples |= {name: ids[:_MAX_EXAMPLES] for name, ids in examples.items()}
        return total

    def metrics(self) -> dict[str, Any]:
        """The report as flat metrics."""
        record: dict[str, Any] = {}
        if self.rewards:
            # `fsum` does not depend on the order in which episodes end, so a repeated run reports the same.
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
        if self.filtered_groups:
            record["groups/filtered"] = len(self.filtered_groups)
        record["episodes/total"] = sum(self.outcomes.values())
        record |= self._metrics_by_environment()
        if self.waits:
            record["time/waiting"] = self.waiting_seconds
        record |= {f"episodes/{outcome}": count for outcome, count in sorted(self.outcomes.items())}
        decisions = {**self.decisions, Decision.RETRIED.value: self.retried, Decision.KEPT.value: 0}
        decisions.pop(Decision.FILTERED.value, None)  # no failure: `groups/filtered` has them
        record |= {f"failures/{decision}": count for decision, count in sorted(decisions.items()) if count}
        record |= {f"agent/turns_{how}": count for how, count in sorted(self.continuations.items())}
        if self.others:
            record["others/tokens"] = sum(count for what, count in self.others.items() if what.endswith("/tokens"))
            record |= {f"others/{what}": count for what, count in sorted(self.others.items())}
        agent = {"agent/branches": self.branches, "agent/refused": self.refused.total()}
        record |= {name: count for name, count in agent.items() if count}
        if self.tools.calls or self.tools.format_problems:
            record |= {f"tools/{name}": count for name, count in vars(self.tools).items()}
        return record

    def _metrics_by_environment(self) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for name, (won, counted) in sorted(self.successes_by_environment().items()):
            prefix, episodes = f"environment/{name}", self.environments[name]
            record[f"{prefix}/episodes"] = len(episodes)
            if counted:
                rewards = [episode.reward for episode in episodes if episode.reward is not None]
                record |= {f"{prefix}/reward": math.fsum(rewards) / counted, f"{prefix}/success": won / counted}
        return record


def report_of(trajectories: Iterable[Trajectory]) -> EpisodeReport:
    """Sum up finished episodes; rewards and turns are of those that count, without faults.

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
        report.decisions[trajectory.decision.value] += 1
        report.retried += trajectory.attempt
        report.not_retried += trajectory.error.endswith(NOT_RETRIED)
        report.waits.update({what: round(1000 * seconds) for what, seconds in trajectory.waits.items()})
        for name, other in trajectory.others.items():
            report.others.update({f"{name}/{what}": int(other.get(what, 0)) for what in ("replies", "tokens")})
        report.first_error = report.first_error or trajectory.error
        rewards = report.groups.setdefault(trajectory.group_id, [])
        is_filtered = trajectory.decision is Decision.FILTERED
        if is_filtered and not rewards:
            report.filtered_groups.append(trajectory.group_id)
        is_used = trajectory.is_counted or is_filtered
        if is_used:
            rewards.append(trajectory.total_reward)
            _add_behaviour(report, trajectory)
        if trajectory.environment:
            mixed = MixedEpisode(trajectory.total_reward if is_used else None, trajectory.reported_success)
            report.environments.setdefault(trajectory.environment, []).append(mixed)
        _add_tool_calls(report, trajectory)
        _add_example(report.examples, outcome.value, trajectory)
        _add_example(report.group_examples, trajectory.group_id, trajectory)
    return report


def refusal_warning(report: EpisodeReport, step: int = 0) -> RunWarning | None:
    """A warning of what agents asked the gateway for and did not get."""
    if not report.refused:
        return None
    (sentence, _), *_ = report.refused.most_common(1)
    return RunWarning(
        "refused_requests",
        step,
        f"{report.refused.total()} requests of the agent got an error instead of a turn; most often: {sentence}",
        "An agent that goes on without the turn earns what the model had no part in.",
        "Leave out of the requests what is refused.",
        tuple(report.examples.get("refused", ())),
    )


def _add_behaviour(report: EpisodeReport, trajectory: Trajectory) -> None:
    report.rewards.append(trajectory.total_reward)
    report.turns.append(trajectory.num_turns)
    report.model_tokens += trajectory.sampled_tokens
    report.branches += len(trajectory.branches)
    cut = sum(turn.stop_reason == "length" for turn in trajectory.turns)
    report.cut_turns += cut
    if cut:
        _add_example(report.examples, "cut_turn", trajectory)
    success = trajectory.reported_success
    report.summaries.append(EpisodeSummary.of(trajectory))
    if success is not None:
        report.successes = (report.successes or 0) + success
    if trajectory.actions:
        conversation = repr((trajectory.messages, trajectory.actions)).encode(errors="surrogatepass")
        digest = blake2b(conversation, digest_size=8).hexdigest()
        report.conversations.setdefault(digest, []).append(trajectory.episode_id)


def _add_tool_calls(report: EpisodeReport, trajectory: Trajectory) -> None:
    for info in trajectory.infos:
        calls = info.get("tool_calls", ())
        errors = sum(not call.get("ok", True) for call in calls)
        failures = sum("failure" in call for call in calls)
        has_format_problem = "format_problem" in info
        if how := info.get("continuation"):
            report.continuations[str(how)] += 1
        report.tools = _added(report.tools, ToolCounts(len(calls), errors, failures, int(has_format_problem)))
        report.refused.update(info.get("refused", {}))
        reasons = {
            "refused": "refused" in info,
            "tool_error": errors,
            "tool_failure": failures,
            "format_problem": has_format_problem,
        }
        for reason in filter(reasons.get, reasons):
            _add_example(report.examples, reason, trajectory)


def _add_example(examples: dict[str, list[str]], reason: str, trajectory: Trajectory) -> None:
    ids = examples.setdefault(reason, [])
    if len(ids) < _MAX_EXAMPLES and trajectory.episode_id not in ids:
        ids.append(trajectory.episode_id)


def _added(ours: _Counts, theirs: _Counts) -> _Counts:
    """The sum of two reports, field by field."""
    return type(ours)(**{name: _add(value, getattr(theirs, name)) for name, value in vars(ours).items()})


def _add(ours: Any, theirs: Any) -> Any:
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    if type(ours) is dict:
        return {name: ours.get(name, []) + theirs.get(name, []) for name in ours | theirs}
    if isinstance(ours, ToolCounts):
        return _added(ours, theirs)
    return ours + theirs
