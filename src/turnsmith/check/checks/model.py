"""How well the real model does before training, and whether there is anything to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist

from turnsmith.check.finding import Check, Finding
from turnsmith.check.scripted import model_episodes
from turnsmith.check.subject import Subject
from turnsmith.rollout.evaluation.result import EvaluationResult

_GAIN = 0.1
_MANY_CONSTANT = 0.8
_MANY_FAULTS = 0.1
_MOST_SHOWN = 3


async def check_learnable(subject: Subject) -> Finding:
    """Let the model play several episodes from each of a few starts."""
    if subject.engine is None:
        return Finding("skipped", "Needs the model: pass --model.")
    episodes = await model_episodes(subject)
    result, faults = EvaluationResult(episodes, subject.success_reward), [e for e in episodes if not e.is_counted]
    if len(faults) > _MANY_FAULTS * len(episodes):
        saw = f"{len(faults)} of {len(episodes)} episodes ended in a fault. The first error: {faults[0].error}"
        return Finding("failed", saw, "Fix this first, with `turnsmith play`.", faults[:_MOST_SHOWN])
    rewards: dict[str, list[float]] = {}
    for episode in result.counted:
        rewards.setdefault(episode.group_id, []).append(episode.total_reward)
    size = subject.config.training.group_size
    groups = [group for group in rewards.values() if len(group) > 1]
    if not groups:
        return Finding("skipped", "No start has two episodes of the model that ended without a fault.")
    low, high = constant_share(groups, size)
    success = result.success.value
    share = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    saw = (
        f"{len(result.counted)} episodes: success {success:.0%}, reward {result.reward.value:.3g}; {share} of groups "
        f"of {size} would be constant; {episodes_to_see(success)} episodes show a gain of 10 points."
    )
    if low < _MANY_CONSTANT:
        return Finding("passed", saw)
    harder = "easier starts, a reward for parts of the task, a better prompt or a larger model"
    easier = "harder starts, or a reward that tells good episodes from better ones"
    fix = f"Find {easier if success > 0.5 else harder}; a larger training.group_size or filter_groups helps a little."
    return Finding("warning", saw, fix, result.counted[:_MOST_SHOWN])


def constant_share(rewards: Sequence[Sequence[float]], size: int) -> tuple[float, float]:
    """Bounds on the expected share of groups of `size` whose rewards are all the same, from smaller groups.

    For up to as many episodes as each start has, subsets are counted, without bias. Beyond that, the share falls at
    most as fast as it did last, and never rises.

    Example:
        >>> constant_share([[0, 0, 0, 0], [0, 1, 0, 1]], 2)
        (0.6666666666666666, 0.6666666666666666)
        >>> constant_share([[0, 0, 0, 0]], 8)
        (1.0, 1.0)
    """
    samples = min(map(len, rewards), default=0)
    if samples < 2:
        return 0.0, 1.0

    def share(k: int) -> float:
        each = [sum(comb(count, k) for count in Counter(group).values()) / comb(len(group), k) for group in rewards]
        return sum(each) / len(each)

    if size <= samples:
        return share(max(2, size)), share(max(2, size))
    last, before = share(samples), share(samples - 1) if samples > 2 else 1.0
    return (last * (last / before) ** (size - samples) if before else 0.0), last


def episodes_to_see(success: float, gain: float = _GAIN) -> int:
    """Episodes in each of two evaluations that show a gain in success with 80 % power at 5 % (two proportions).

    Example:
        >>> episodes_to_see(0.5), episodes_to_see(0.0)
        (388, 74)
    """
    normal, first = NormalDist(), min(success, 1 - gain)
    second, mean = first + gain, first + gain / 2
    alpha = normal.inv_cdf(0.975) * sqrt(2 * mean * (1 - mean))
    beta = normal.inv_cdf(0.8) * sqrt(first * (1 - first) + second * (1 - second))
    return -int(-((alpha + beta) ** 2) // gain**2)


MODEL = Check(
    "the model has something to learn",
    "Plays up to 64 episodes with the model in half a minute, 4 from each start.",
    "A group whose episodes all get the same reward gives no gradient; such runs cost days and learn nothing.",
    check_learnable,
)
