"""The two-turn stopping bandit: what each estimator's policy gradient is on average, exactly.

In turn 1 the policy stops, for a reward of 1, or goes on. In turn 2, which only some episodes reach, it pulls arm A,
for a reward of 3, or arm B, for 0. Only three episodes can happen, so the exact gradient and every estimator's
expected gradient over all groups of n episodes are short sums. The table shows expected / exact for the logit of each
turn:

    1 and 1         unbiased
    equal           unbiased up to a factor: another step size
    not equal       biased: one turn learns faster than it should
    negative        biased: on average the policy is pushed the wrong way

and the noise: the standard deviation of one group's gradient over the length of its expected value.

Run: python examples/stopping_bandit.py [group size ...]
"""

import math
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from turnsmith import algo

# The three episodes: stop; go and arm A; go and arm B. Token 0 is turn 1, token 1 the observation, token 2 turn 2.
MASK = torch.tensor([[1, 0, 0], [1, 0, 1], [1, 0, 1]])
REWARDS = torch.tensor([[1, 0, 0], [0, 0, 3], [0, 0, 0]], dtype=torch.float64)
ANCHORS = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 1]])  # of GiGPO: all start alike, and all that go see the same
LOGITS = torch.tensor([0.3, 0.4], dtype=torch.float64).logit()  # of going in turn 1, and of arm A in turn 2

Estimator = Callable[[Tensor], Tensor]
"""From the kinds of the episodes of a group, `(n,)`, to advantages `(n, 3)`."""


def log_probs(logits: Tensor) -> Tensor:
    """Of each token of the three episodes, `(3, 3)`."""
    go, a = torch.nn.functional.logsigmoid(logits)
    stop, b = torch.nn.functional.logsigmoid(-logits)
    zero = torch.zeros_like(go)
    return torch.stack([stop, zero, zero, go, zero, a, go, zero, b]).view(3, 3)


SCORES = torch.autograd.functional.jacobian(log_probs, LOGITS)
"""Gradient of each token's log-prob with respect to the two logits, `(3, 3, 2)`."""
PROBS = log_probs(LOGITS).sum(dim=1).exp()


def mean_reward(logits: Tensor) -> Tensor:
    return log_probs(logits).sum(dim=1).exp() @ REWARDS.sum(dim=1)


EXACT = torch.autograd.functional.jacobian(mean_reward, LOGITS)


def estimate(estimator: Estimator, kinds: Tensor, tokens_weigh_the_same: bool = False) -> Tensor:
    """The policy gradient of one group: 1/n sum_i sum_t A_{i,t} grad log pi(a_{i,t}), or over the number of tokens."""
    total = torch.einsum("it,itp->p", estimator(kinds), SCORES[kinds])
    return total / (MASK[kinds].sum() if tokens_weigh_the_same else len(kinds))


def expectation(of_group: Callable[[Tensor], Tensor], n: int) -> Tensor:
    """Expected value over all groups of n episodes. Their order does not matter: each choice of kinds is taken once."""
    total = torch.zeros(())
    for kinds in combinations_with_replacement(range(3), n):
        orders = math.factorial(n) / math.prod(math.factorial(count) for count in Counter(kinds).values())
        total = total + orders * PROBS[list(kinds)].prod() * of_group(torch.tensor(kinds))
    return total


def grouped(compute: Callable[..., tuple[Tensor, Tensor]], **options: object) -> Estimator:
    return lambda kinds: compute(REWARDS[kinds], MASK[kinds], [0] * len(kinds), **options)[0]


def critic(first: float, second: float, lam: float, whiten: bool = False) -> Estimator:
    """Turn-level GAE with these values of the two turns. Here a turn is one token, so GAE over tokens is the same."""
    values = torch.tensor([[first, 0, second]], dtype=torch.float64)
    return lambda kinds: algo.compute_turn_gae_advantage_return(
        REWARDS[kinds], values.expand(len(kinds), 3), MASK[kinds], 1.0, lam, whiten=whiten
    )[0]


def gigpo(kinds: Tensor, normalize: bool) -> Tensor:
    return algo.compute_gigpo_advantage(
        REWARDS[kinds], MASK[kinds], [0] * len(kinds), ANCHORS[kinds], 1.0, normalize=normalize
    )[0]


def by_turn_index(kinds: Tensor, *, std: bool = False, sum_later: bool = False) -> Tensor:
    """Not shipped: a turn against all episodes that reached it, itself among them.

    The returns from the turn on are compared; with `sum_later` the rewards of the turn alone, which are then summed
    over the later turns.
    """
    rewards = REWARDS[kinds]
    compared = rewards if sum_later else rewards.flip(1).cumsum(1).flip(1)
    result = torch.zeros_like(rewards)
    for turn in (0, 2):
        there = MASK[kinds, turn] == 1
        own = compared[there, turn]
        if len(own) > 1:
            result[there, turn] = (own - own.mean()) / ((own.std() + 1e-6) if std else 1)
    return result.flip(1).cumsum(1).flip(1) * MASK[kinds] if sum_later else result


TRUE = (0.7 * 1 + 0.3 * 1.2, 1.2)  # what an episode is worth at its start, and after going on
WRONG = (0.0, 3.0)
ESTIMATORS: dict[str, Estimator] = {
    "GRPO": grouped(algo.compute_grpo_advantage),
    "Dr. GRPO": grouped(algo.compute_dr_grpo_advantage),
    "RLOO": grouped(algo.compute_rloo_advantage),
    "OPO": grouped(algo.compute_opo_advantage),
    "REINFORCE++": lambda kinds: algo.compute_reinforce_plus_plus_advantage(REWARDS[kinds], MASK[kinds])[0],
    "REINFORCE++-baseline": grouped(algo.compute_reinforce_plus_plus_baseline_advantage),
    "pass@k, no std": grouped(algo.compute_pass_at_k_advantage, normalise_by_std=False),
    "turn returns": grouped(algo.compute_turn_return_advantage, gamma=1.0),
    'turn returns, scale "group" or "batch"': grouped(algo.compute_turn_return_advantage, gamma=1.0, scale="batch"),
    "turn GAE, true values, lam 0.5": critic(*TRUE, lam=0.5),
    "turn GAE, wrong values, lam 1": critic(*WRONG, lam=1.0),
    "turn GAE, wrong values, lam 0.5": critic(*WRONG, lam=0.5),
    "turn GAE, true values, whitened": critic(*TRUE, lam=1.0, whiten=True),
    "GiGPO": partial(gigpo, normalize=True),
    "GiGPO, no std": partial(gigpo, normalize=False),
    "not shipped: returns - mean of turn k": by_turn_index,
    "not shipped: the same / std of turn k": partial(by_turn_index, std=True),
    "not shipped: rewards - mean of turn k, then summed": partial(by_turn_index, sum_later=True),
}


def ratio_and_noise(estimator: Estimator, n: int, tokens_weigh_the_same: bool = False) -> tuple[Tensor, float]:
    """Expected / exact gradient `(2,)`, and the standard deviation of one group's gradient over its expected length."""

    def moments(kinds: Tensor) -> Tensor:
        gradient = estimate(estimator, kinds, tokens_weigh_the_same)
        return torch.stack([gradient, gradient.square()])

    mean, square = expectation(moments, n)
    return mean / EXACT, float((square - mean.square()).sum().sqrt() / mean.norm())


def table(*sizes: int) -> str:
    """One row an estimator, in Markdown; the noise is that of the last size."""
    head = [f"groups of {n}" for n in sizes]
    lines = [
        f"| expected / exact, turn 1 and 2 | {' | '.join(head)} | noise |",
        "| --- |" + " --- |" * (len(sizes) + 1),
    ]
    cases = [(name, estimator, False) for name, estimator in ESTIMATORS.items()]
    cases.insert(3, ("RLOO, loss averaged over tokens", ESTIMATORS["RLOO"], True))
    for name, estimator, tokens_weigh_the_same in cases:
        found = [ratio_and_noise(estimator, n, tokens_weigh_the_same) for n in sizes]
        cells = [f"{one:.2f}, {two:.2f}" for (one, two), _ in found]
        lines.append(f"| {name} | {' | '.join(cells)} | {found[-1][1]:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"Exact gradient: {EXACT[0]:.3f} for going on in turn 1, {EXACT[1]:.3f} for arm A in turn 2.\n")
    print(table(*map(int, sys.argv[1:] or (2, 8))))
