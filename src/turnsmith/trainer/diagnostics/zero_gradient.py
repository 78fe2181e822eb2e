"""Explains why the gradient of a step is zero, the question that training raises most often."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.config import ConfigStore
from turnsmith.rollout.episode_report import EpisodeReport
from turnsmith.text import number
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trajectory import Outcome

NEARLY_ALL = 0.9
"""Share of episodes or turns that counts as all of them."""
LIMITS = {
    Outcome.TURN_LIMIT: "inference.max_turns",
    Outcome.TOKEN_LIMIT: "inference.max_episode_tokens",
    Outcome.TOOL_CALL_LIMIT: "inference.max_tool_calls",
    Outcome.TIME_LIMIT: "inference.max_seconds",
    Outcome.TRUNCATED: "the environment's own limit, such as environment.max_steps",
}
"""Outcomes of episodes that reached a limit, and the setting of that limit."""


@dataclass(frozen=True, slots=True)
class ZeroGradientCause:
    """Why the gradient is zero, and what to do."""

    because: str
    advice: str
    episodes: tuple[str, ...] = ()


def compares_groups(config: ConfigStore) -> bool:
    """Whether a run's estimator compares the episodes of one group with each other."""
    return get_estimator(config.training.adv_estimator).compares_groups


def cause_of_zero(report: EpisodeReport, config: ConfigStore, *, flat: bool, clipped: float = 0.0) -> ZeroGradientCause:
    """Why the gradient of a step is zero.

    Args:
        report: The step's episodes.
        config: The run's settings.
        flat: Whether all advantages are 0.
        clipped: The share of tokens that the policy loss clipped.

    Example:
        >>> from turnsmith.rollout.episode_report import report_of
        >>> from turnsmith.trajectory import TokenBuffer, Trajectory
        >>> tokens = TokenBuffer()
        >>> span = tokens.append_model([5], [-0.1])
        >>> def episode(name: str) -> Trajectory:
        ...     return Trajectory(
        ...         [], [name], [0.0], tokens=tokens, outcome=Outcome.COMPLETED, group_id="g", episode_id=name
        ...     )
        >>> cause_of_zero(report_of([episode("a"), episode("b")]), ConfigStore(), flat=True).because
        'all 2 episodes got the same reward, 0'
    """
    if not report.rewards:
        return _nothing_to_train_on(report)
    if report.model_tokens == 0:
        return ZeroGradientCause("no token of these episodes was sampled by the model", _REPORT_BUG)
    if not flat:
        return _no_token_counts(clipped)
    if min(report.rewards) == max(report.rewards):
        return _one_reward(report, config)
    if compares_groups(config) and not report.compared_groups:
        return ZeroGradientCause(
            "no group has two episodes to compare",
            "Set training.group_size to at least 2 (8 is usual); if episodes failed, find out why.",
            _examples(report, list(report.groups)),
        )
    if len(report.constant_groups) == len(report.compared_groups):
        return _constant_groups(report)
    return ZeroGradientCause(
        "every advantage is 0 although the rewards differ",
        "Check training.adv_estimator, training.credit and training.gamma, which turn rewards into advantages.",
        _examples(report, list(report.compared_groups)),
    )


_REPORT_BUG = "The engine returned no tokens: look at the episodes, and try inference.backend=transformers."


def _nothing_to_train_on(report: EpisodeReport) -> ZeroGradientCause:
    failed = [name for outcome in report.outcomes for name in report.examples.get(outcome, [])]
    return ZeroGradientCause(
        f"no episode can be trained on ({report.ends or 'there were none'})",
        f"Fix the first failure: {first_line(report.first_error) or 'see the episodes'}",
        tuple(failed[:3]),
    )


def _no_token_counts(clipped: float) -> ZeroGradientCause:
    if clipped >= NEARLY_ALL:
        return ZeroGradientCause(
            f"the policy loss clipped {clipped:.0%} of the tokens",
            "Lower training.learning_rate or training.updates_per_batch, or widen training.clip_ratio.",
        )
    return ZeroGradientCause(
        "the advantages are not 0, but every token is masked or has weight 0",
        "Look at correction/mean and rollout_diff in the metrics: with training.rollout_correction, importance weights "
        "vanish where engine and trainer disagree.",
    )


def _one_reward(report: EpisodeReport, config: ConfigStore) -> ZeroGradientCause:
    reward, count = report.rewards[0], len(report.rewards)
    because = f"all {count} episodes got the same reward, {number(reward)}"
    limit = max(LIMITS, key=lambda one: report.outcomes.get(one.value, 0))
    ended = report.outcomes.get(limit.value, 0)
    if ended >= NEARLY_ALL * count:
        return ZeroGradientCause(
            f"{because}, and {ended} of them reached a limit ({limit.value}) before the task was over",
            f"Let episodes finish: raise {LIMITS[limit]}, or make the task shorter.",
            tuple(report.examples.get(limit.value, [])),
        )
    cut = "" if reward > 0 else _cut_turns(report, config)
    if reward > 0:
        advice = "If that is the maximum, the task is solved: stop, or make it harder. If not, add partial rewards."
    else:
        advice = (
            "Play an episode yourself (`turnsmith play`) to check that the reward can be reached. Then add partial "
            "rewards, start with easier tasks, or use larger groups (training.group_size)."
        )
        advice += " Check that inference.max_tokens leaves room for an answer." if cut else ""
    return ZeroGradientCause(
        f"{because}{f', and {cut}' if cut else ''}", advice, _examples(report, list(report.groups))
    )


def _cut_turns(report: EpisodeReport, config: ConfigStore) -> str:
    turns = sum(report.turns)
    if not turns or report.cut_turns < NEARLY_ALL * turns:
        return ""
    return f"{report.cut_turns} of {turns} turns were cut at {config.inference.max_tokens} tokens"


def _constant_groups(report: EpisodeReport) -> ZeroGradientCause:
    count = len(report.constant_groups)
    return ZeroGradientCause(
        f"in {'the only group' if count == 1 else f'each of the {count} groups'} all episodes got the same reward, and "
        "episodes are compared within their group",
        "Use tasks that the model solves sometimes, neither always nor never. Larger groups (training.group_size) "
        "and inference.temperature=1 help.",
        _examples(report, report.constant_groups),
    )


def first_line(text: str, longest: int = 200) -> str:
    """The first line of an error, shortened."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= longest else f"{line[:longest]}..."


def _examples(report: EpisodeReport, groups: list[str]) -> tuple[str, ...]:
    """One episode of each of the first groups; of a single group, its first episodes."""
    if len(groups) == 1:
        return tuple(report.group_examples.get(groups[0], ()))
    return tuple(name for group in groups[:3] for name in report.group_examples.get(group, [])[:1])
