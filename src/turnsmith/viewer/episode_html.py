"""Episodes as HTML: the conversation by roles, with what each turn earned and how it was trained.

Whatever an environment, a tool or a model said stays text: everything passes through `escape`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from turnsmith.text import duration, number
from turnsmith.trajectory import Outcome, Trajectory
from turnsmith.viewer.episode_choice import Chosen

_TEXT_BUDGET = 500_000
"""Characters of all conversations together."""
_MOST_MESSAGES = 60
_LONGEST_MESSAGE = 4_000


def anchor(step: int, episode_id: str) -> str:
    """The id of an episode's place in the page, for links to it."""
    return escape(f"episode-{step}-{episode_id}")


def episodes_html(episodes: Sequence[Chosen]) -> str:
    """All chosen episodes, folded; the first is open."""
    room = _TEXT_BUDGET // max(1, len(episodes))
    return "\n".join(episode_html(one, room, is_open=place == 0) for place, one in enumerate(episodes))


def episode_html(chosen: Chosen, room: int = 20_000, *, is_open: bool = False) -> str:
    """One episode; its texts are cut to about `room` characters."""
    episode = chosen.trajectory
    outcome = episode.outcome.value if episode.outcome else "unfinished"
    kind = _kind(episode.outcome)
    tags = "".join(f'<span class="tag">{escape(reason)}</span>' for reason in chosen.reasons)
    facts = f"{_plural(episode.num_turns, 'turn')}, {len(episode.tokens)} tokens, {duration(episode.seconds)}"
    place = f"step {chosen.step} · " if chosen.step else ""  # evaluations belong to no step
    head = (
        f'<summary><span class="reward">{number(episode.total_reward)}</span>'
        f'<span class="badge {kind}">{escape(outcome)}</span>{tags}'
        f'<span class="facts">{place}{escape(episode.episode_id)} · {facts}</span></summary>'
    )
    error = f'<pre class="error">{escape(_cut(episode.error, 2000))}</pre>' if episode.error else ""
    shares = ", ".join(f"{name} {number(share)}" for name, share in episode.reward_shares.items())
    paid = "" if episode.score is None else f"The reward function paid {number(episode.score)}"
    paid = f'<p class="shares">{paid}{f": {escape(shares)}" if shares else ""}.</p>' if paid else ""
    return (
        f'<details class="episode" id="{anchor(chosen.step, episode.episode_id)}"{" open" if is_open else ""}>{head}'
        f'{error}{paid}<div class="talk">{"".join(_messages(chosen, room))}</div></details>'
    )


def turn_advantages(trajectory: Trajectory, advantages: Sequence[float]) -> list[float | None]:
    """The mean advantage of each turn's tokens.

    Example:
        >>> from turnsmith.trajectory import TurnRecord
        >>> trajectory = Trajectory()
        >>> trajectory.tokens.open([1, 2])
        >>> for ids in ([3, 4], [5]):
        ...     span = trajectory.tokens.append_model(ids, [-0.5] * len(ids))
        ...     trajectory.turns.append(TurnRecord(*span, "stop", 0))
        >>> turn_advantages(trajectory, [1.0, 2.0, -1.0])
        [1.5, -1.0]
    """
    first = trajectory.tokens.prompt_length
    spans = [advantages[turn.start - first : turn.stop - first] for turn in trajectory.turns]
    return [sum(span) / len(span) if len(span) else None for span in spans]


def _messages(chosen: Chosen, room: int) -> Iterator[str]:
    messages = chosen.trajectory.messages
    turns = _turn_notes(chosen)
    longest = max(300, min(_LONGEST_MESSAGE, room // max(1, min(len(messages), _MOST_MESSAGES))))
    # What the model said before its first turn (an example in the prompt) is no turn of its own.
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    notes = dict(zip(reversed(answers), reversed(turns), strict=False))
    half = _MOST_MESSAGES // 2
    for place, message in enumerate(messages):
        left_out = len(messages) - _MOST_MESSAGES
        if left_out > 0 and half <= place < len(messages) - half:
            if place == half:
                yield f'<p class="left-out">{_plural(left_out, "message")} left out</p>'
            continue
        role, text = message["role"], _cut(message["content"], longest)
        known = role if role in ("system", "user", "assistant", "tool") else "user"
        yield (
            f'<div class="message {known}"><span class="role">{escape(role)}</span>'
            f"<div><pre>{escape(text) or '<i>nothing</i>'}</pre>{notes.get(place, '')}</div></div>"
        )


def _turn_notes(chosen: Chosen) -> list[str]:
    episode = chosen.trajectory
    advantages = [None] * len(episode.turns)
    if chosen.advantages is not None:
        advantages = turn_advantages(episode, chosen.advantages)
    notes: list[str] = []
    for place, (turn, advantage) in enumerate(zip(episode.turns, advantages, strict=True)):
        parts = [f"turn {place + 1}"]
        if place < len(episode.rewards):
            parts.append(f"reward <b>{number(episode.rewards[place])}</b>")
        if advantage is not None:
            sign = "up" if advantage > 1e-9 else "down" if advantage < -1e-9 else "flat"
            parts.append(f'advantage <b class="{sign}">{"0" if sign == "flat" else f"{advantage:+.3g}"}</b>')
        parts.append(_plural(turn.stop - turn.start, "token"))
        if turn.stop_reason != "stop":
            parts.append("cut" if turn.stop_reason == "length" else escape(turn.stop_reason))
        notes.append(f'<p class="turn">{" · ".join(parts)}</p>')
    return notes


def _kind(outcome: Outcome | None) -> str:
    if outcome is None or not outcome.is_behaviour:
        return "bad"
    return "good" if outcome is Outcome.COMPLETED else "fair"


def _cut(text: str, longest: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= longest:
        return text
    head = longest * 2 // 3
    tail = longest - head
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
