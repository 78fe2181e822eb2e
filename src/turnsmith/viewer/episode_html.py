"""Episodes as HTML: the conversation, with the reward and the advantage of each turn.

Everything that an environment, a tool or a model wrote passes through `escape`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from turnsmith.records.json_text import to_json
from turnsmith.text import duration, number
from turnsmith.trajectory import Outcome, Trajectory
from turnsmith.viewer.episode_selection import SelectedEpisode

_TEXT_BUDGET = 500_000
"""Characters of all conversations together."""
_MAX_MESSAGES = 60
_MAX_MESSAGE_LENGTH = 4_000


def anchor(step: int, episode_id: str) -> str:
    """The HTML id of an episode, for links to it."""
    return escape(f"episode-{step}-{episode_id}")


def episodes_html(episodes: Sequence[SelectedEpisode]) -> str:
    """All selected episodes, folded; the first is open."""
    budget = _TEXT_BUDGET // max(1, len(episodes))
    return "\n".join(_episode(selected, budget, is_open=place == 0) for place, selected in enumerate(episodes))


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
    spans = [advantages[start:stop] for start, stop in trajectory.turn_spans()]
    return [sum(span) / len(span) if len(span) else None for span in spans]


def _episode(selected: SelectedEpisode, budget: int, *, is_open: bool) -> str:
    """One episode; its texts are cut to about `budget` characters."""
    episode = selected.trajectory
    outcome = episode.outcome.value if episode.outcome else "unfinished"
    tags = "".join(f'<span class="tag">{escape(reason)}</span>' for reason in selected.reasons)
    tokens = sum(map(len, episode.segments))
    facts = f"{_plural(episode.num_turns, 'turn')}, {tokens} tokens, {duration(episode.seconds)}"
    step = f"step {selected.step} · " if selected.step else ""  # evaluations belong to no step
    head = (
        f'<summary><span class="reward">{number(episode.total_reward)}</span>'
        f'<span class="badge {_badge(episode.outcome)}">{escape(outcome)}</span>{tags}'
        f'<span class="facts">{step}{escape(episode.episode_id)} · {facts}</span></summary>'
    )
    error = f'<pre class="error">{escape(_cut(episode.error, 2000))}</pre>' if episode.error else ""
    score = ""
    if episode.score is not None:
        shares = ", ".join(f"{name} {number(share)}" for name, share in episode.reward_shares.items())
        shares = f": {escape(shares)}" if shares else ""
        score = f'<p class="shares">The reward function returned {number(episode.score)}{shares}.</p>'
    return (
        f'<details class="episode" id="{anchor(selected.step, episode.episode_id)}"{" open" if is_open else ""}>{head}'
        f'{error}{score}<div class="talk">{_task(episode)}{"".join(_messages(selected, budget))}</div></details>'
    )


def _task(episode: Trajectory) -> str:
    """The dataset's row, one column per line."""
    if not episode.task:
        return ""
    values = {name: value if isinstance(value, str) else to_json(value) for name, value in episode.task.items()}
    text = _cut("\n".join(f"{name}: {value}" for name, value in values.items()), _MAX_MESSAGE_LENGTH)
    return f'<div class="message system"><span class="role">task</span><div><pre>{escape(text)}</pre></div></div>'


def _messages(selected: SelectedEpisode, budget: int) -> Iterator[str]:
    messages = selected.trajectory.messages
    length = max(300, min(_MAX_MESSAGE_LENGTH, budget // max(1, min(len(messages), _MAX_MESSAGES))))
    # Matched from the end: an assistant message before the first turn is an example in the prompt.
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    notes = dict(zip(reversed(answers), reversed(_turn_notes(selected)), strict=False))
    half = _MAX_MESSAGES // 2
    omitted = len(messages) - _MAX_MESSAGES
    for place, message in enumerate(messages):
        if omitted > 0 and half <= place < len(messages) - half:
            if place == half:
                yield f'<p class="left-out">{_plural(omitted, "message")} omitted</p>'
            continue
        role, text = message["role"], _cut(message["content"], length)
        style = role if role in ("system", "user", "assistant", "tool") else "user"
        yield (
            f'<div class="message {style}"><span class="role">{escape(role)}</span>'
            f"<div><pre>{escape(text) or '<i>empty</i>'}</pre>{notes.get(place, '')}</div></div>"
        )


def _turn_notes(selected: SelectedEpisode) -> list[str]:
    episode = selected.trajectory
    advantages = [None] * len(episode.turns)
    if selected.advantages is not None:
        advantages = turn_advantages(episode, selected.advantages)
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


def _badge(outcome: Outcome | None) -> str:
    if outcome is None or not outcome.is_behaviour:
        return "bad"
    return "good" if outcome is Outcome.COMPLETED else "fair"


def _cut(text: str, length: int) -> str:
    """The text, or its beginning and end if it is longer than `length`."""
    if len(text) <= length:
        return text
    head = length * 2 // 3
    tail = length - head
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters omitted ...]\n{text[-tail:]}"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
