"""The formulas again, slow and plain: Python floats (float64), one token at a time.

Rewards, values and masks are lists of rows. Nothing here is shared with the package.
"""

from __future__ import annotations

import math

Rows = list[list[float]]
Mask = list[list[int]]


def finite(row: list[float]) -> bool:
    return all(math.isfinite(reward) for reward in row)


def carried(rewards: list[float], mask: list[int]) -> list[float]:
    """Rewards on model tokens; a reward on any other token is moved to the last model token before it."""
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


def turn_spans(on: list[int]) -> list[tuple[int, int]]:
    """First and last model token of each turn of a row."""
    spans: list[tuple[int, int]] = []
    for time, model in enumerate(on):
        if model and spans and spans[-1][1] == time - 1:
            spans[-1] = (spans[-1][0], time)
        elif model:
            spans.append((time, time))
    return spans


def turn_gae(rewards: Rows, values: Rows, mask: Mask, gamma: float, lam: float) -> tuple[list[list[float]], Rows]:
    """Advantage and return of each turn of each episode; no turns for an episode whose rewards are not finite."""
    advantages, returns = [], []
    for row, value, on in zip(rewards, values, mask, strict=True):
        spans = turn_spans(on) if finite(row) else []
        a, g = [0.0] * len(spans), [0.0] * len(spans)
        next_value = next_advantage = 0.0
        for k in reversed(range(len(spans))):
            first = spans[k][0]
            until = spans[k + 1][0] if k + 1 < len(spans) else len(row)
            delta = math.fsum(row[first:until]) + gamma * next_value - value[first]
            a[k] = delta + gamma * lam * next_advantage
            g[k] = a[k] + value[first]
            next_value, next_advantage = value[first], a[k]
        advantages.append(a)
        returns.append(g)
    return advantages, returns


def turn_returns(rewards: Rows, mask: Mask, gamma: float) -> Rows:
    return turn_gae(rewards, [[0.0] * len(row) for row in rewards], mask, gamma, 1.0)[1]


def turn_deviations(returns: Rows, index: list[str]) -> Rows:
    """Return of each turn minus the others' at the same turn, or at their last turns if none of them got so far."""
    result = []
    for row, own in enumerate(returns):
        others = [g for other, g in enumerate(returns) if other != row and index[other] == index[row] and g]
        deviations = []
        for k, g in enumerate(own):
            same = [other[k] for other in others if len(other) > k] or [other[-1] for other in others]
            deviations.append(g - math.fsum(same) / len(same) if same else 0.0)
        result.append(deviations)
    return result


def turn_scaled(deviations: Rows, index: list[str], epsilon: float = 1e-6) -> Rows:
    result = []
    for row, own in enumerate(deviations):
        taken = [x for other, name in zip(deviations, index, strict=True) if name == index[row] for x in other]
        scale = math.sqrt(math.fsum(x * x for x in taken) / max(len(taken) - 1, 1)) + epsilon
        result.append([x / scale for x in own])
    return result


def gigpo(
    rewards: Rows, mask: Mask, index: list[str], anchors: Mask, gamma: float, weight: float, normalize: bool
) -> Rows:
    """Advantage of each turn of each episode."""
    returns = turn_returns(rewards, mask, gamma)
    episode = grouped("grpo" if normalize else "dr_grpo", rewards, mask, index)
    starts = [[anchors[row][first] for first, _ in turn_spans(on)] for row, on in enumerate(mask)]
    result = []
    for row, own in enumerate(returns):
        turns = []
        for k, g in enumerate(own):
            same = [
                returns[other][j]
                for other in range(len(rewards))
                if index[other] == index[row]
                for j in range(len(returns[other]))
                if starts[other][j] == starts[row][k]
            ]
            deviation = g - math.fsum(same) / len(same) if len(same) > 1 else 0.0
            turns.append(episode[row] + weight * (deviation / (std(same) + 1e-6) if normalize else deviation))
        result.append(turns)
    return result


def spread_turns(per_turn: Rows, mask: Mask) -> Rows:
    """Each model token gets its turn's number."""
    result = []
    for numbers, on in zip(per_turn, mask, strict=True):
        row = [0.0] * len(on)
        for number, (first, last) in zip(numbers, turn_spans(on) if numbers else [], strict=True):
            row[first : last + 1] = [number] * (last + 1 - first)
        result.append(row)
    return result
