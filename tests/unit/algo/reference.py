"""The formulas once more, as slow and plain as can be: Python floats (float64), one token at a time.

Rewards, values and masks are lists of rows. Nothing here is shared with the package.
"""

from __future__ import annotations

import math

Rows = list[list[float]]
Mask = list[list[int]]


def finite(row: list[float]) -> bool:
    return all(math.isfinite(reward) for reward in row)


def carried(rewards: list[float], mask: list[int]) -> list[float]:
    """Rewards on model tokens: one on another token goes to the last model token before it."""
    placed = [0.0] * len(rewards)
    last = None
    for time, (reward, on) in enumerate(zip(rewards, mask, strict=True)):
        last = time if on else last
        if last is not None:
            placed[last] += reward
    return placed


def gae(rewards: Rows, values: Rows, mask: Mask, gamma: float, lam: float) -> tuple[Rows, Rows]:
    advantages, returns = [], []
    for row, value, on in zip(rewards, values, mask, strict=True):
        steps = [time for time, model in enumerate(on) if model]
        a, g = [0.0] * len(row), [0.0] * len(row)
        placed = carried(row, on) if finite(row) else row
        next_value = next_advantage = 0.0
        for time in reversed(steps):
            if finite(row):
                delta = placed[time] + gamma * next_value - value[time]
                a[time] = delta + gamma * lam * next_advantage
            g[time] = a[time] + value[time]
            next_value, next_advantage = value[time], a[time]
        advantages.append(a)
        returns.append(g)
    return advantages, returns


def discounted(rewards: Rows, mask: Mask, gamma: float) -> Rows:
    return gae(rewards, [[0.0] * len(row) for row in rewards], mask, gamma, 1.0)[0]


def whiten(rows: Rows, mask: Mask, epsilon: float = 1e-8) -> Rows:
    taken = [x for row, on in zip(rows, mask, strict=True) for x, model in zip(row, on, strict=True) if model]
    mean = math.fsum(taken) / max(len(taken), 1)
    variance = math.fsum((x - mean) ** 2 for x in taken) / max(len(taken) - 1, 1)
    scale = 1 / math.sqrt(variance + epsilon)
    return [
        [(x - mean) * scale if model else 0.0 for x, model in zip(row, on, strict=True)]
        for row, on in zip(rows, mask, strict=True)
    ]


def without_nonfinite(rewards: Rows, mask: Mask) -> Mask:
    return [on if finite(row) else [0] * len(on) for row, on in zip(rewards, mask, strict=True)]


def _others(rewards: Rows, index: list[str], row: int) -> list[int]:
    """Rows of the same group that have finite rewards, with the row itself."""
    return [other for other, name in enumerate(index) if name == index[row] and finite(rewards[other])]


def std(numbers: list[float]) -> float:
    mean = math.fsum(numbers) / len(numbers)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)) if len(numbers) > 1 else 0.0


def grouped(kind: str, rewards: Rows, mask: Mask, index: list[str], epsilon: float = 1e-6) -> list[float]:
    """Advantage of each episode."""
    result = []
    for row in range(len(rewards)):
        members = _others(rewards, index, row)
        if row not in members or len(members) == 1:
            result.append(0.0)
            continue
        scores = [math.fsum(rewards[other]) for other in members]
        own = math.fsum(rewards[row])
        mean = math.fsum(scores) / len(scores)
        if kind == "grpo":
            result.append((own - mean) / (std(scores) + epsilon))
        elif kind == "dr_grpo":
            result.append(own - mean)
        elif kind == "rloo":
            result.append(own - (math.fsum(scores) - own) / (len(scores) - 1))
        elif kind == "opo":
            lengths = [sum(mask[other]) for other in members]
            total = sum(lengths)
            result.append(own - sum(n * s for n, s in zip(lengths, scores, strict=True)) / total if total else 0.0)
        elif kind == "pass_at_k":
            second, best = sorted(scores)[-2:]
            result.append((best - second) / (std(scores) + epsilon) if own == best else 0.0)
    return result


def spread(per_episode: list[float], mask: Mask) -> Rows:
    return [[x * model for model in on] for x, on in zip(per_episode, mask, strict=True)]


def aggregate(loss: Rows, mask: Mask, mode: str) -> float:
    kept = [[x for x, model in zip(row, on, strict=True) if model] for row, on in zip(loss, mask, strict=True)]
    episodes = [row for row in kept if row]
    if not episodes:
        return 0.0
    total = math.fsum(x for row in episodes for x in row)
    return {
        "token-mean": total / sum(len(row) for row in episodes),
        "token-sum": total,
        "seq-mean-token-sum": total / len(episodes),
        "seq-mean-token-sum-norm": total / len(episodes) / len(loss[0]),
        "seq-mean-token-mean": math.fsum(math.fsum(row) / len(row) for row in episodes) / len(episodes),
    }[mode]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def ppo_token(old: float, new: float, advantage: float, low: float, high: float, c: float | None) -> float:
    ratio = math.exp(clip(new - old, -20, 20))
    loss = max(-ratio * advantage, -clip(ratio, 1 - low, 1 + high) * advantage)
    return min(loss, -c * advantage) if c is not None and advantage < 0 else loss


def value_token(value: float, target: float, old: float, c: float | None) -> float:
    near = value if c is None else clip(value, old - c, old + c)
    return max((value - target) ** 2, (near - target) ** 2) / 2
