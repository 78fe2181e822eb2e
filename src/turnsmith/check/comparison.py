"""Where two episodes that were played with the same actions differ."""

from __future__ import annotations

from turnsmith.trajectory import Trajectory


def first_difference(first: Trajectory, second: Trajectory) -> str:
    """What differs first, in words; empty if observations, rewards and outcomes are the same.

    Example:
        >>> one = Trajectory(messages=[{"role": "user", "content": "a"}], rewards=[1.0])
        >>> two = Trajectory(messages=[{"role": "user", "content": "b"}], rewards=[1.0])
        >>> first_difference(one, two), first_difference(one, one)
        ("the opening: 'a' and 'b'", '')
    """
    turn = 0
    for ours, theirs in zip(first.messages, second.messages, strict=False):
        if ours["role"] == "assistant":
            if turn < min(len(first.rewards), len(second.rewards)) and first.rewards[turn] != second.rewards[turn]:
                return f"the reward of turn {turn + 1}: {first.rewards[turn]} and {second.rewards[turn]}"
            turn += 1
        elif ours != theirs:
            where = f"the observation of turn {turn}" if turn else "the opening"
            return f"{where}: {_around(str(ours.get('content')), str(theirs.get('content')))}"
    if first.rewards != second.rewards:
        return f"the rewards: {first.rewards} and {second.rewards}"
    if first.outcome != second.outcome:
        return f"the end, after turn {turn}: {first.outcome} and {second.outcome}"
    return ""


def _around(first: str, second: str) -> str:
    """The texts from shortly before where they part."""
    pairs = enumerate(zip(first, second, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
    start = max(0, place - 20)
    return " and ".join(repr(text[start : place + 30]) for text in (first, second))
