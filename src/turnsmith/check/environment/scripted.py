"""Scripted episodes for checks, from each prompt's words or the model's own turns, and how two episodes differ."""

from __future__ import annotations

import json
import random
import re
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnsmith.check.environment.subject import Subject
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.trajectory import Trajectory

MODEL_SAMPLES, MODEL_BATCHES = 4, (2, 2, 4, 8)
"""Episodes of the model from each start, and starts in each batch of them."""
MODEL_SECONDS = 30.0
NO_TURN = "No scripted episode took a turn without a fault."
"""Why checks are skipped that repeat the turns of episodes."""
_LAST = 3000


def plausible_reply(turn: int, prompt: str) -> str:
    """A text made of the words of the prompt, or a call of one of its tools; the same for the same prompt.

    Often an environment's words contain a valid answer; where they do not, any text is as good.

    Example:
        >>> plausible_reply(0, "Say north, south or 7.") in {"Say", "north", "south", "or", "7", "Say north", "or 7"}
        True
    """
    draw = random.Random(zlib.crc32(f"{turn}/{prompt}".encode(errors="replace")))
    words = re.findall(r"[A-Za-z][\w-]*|-?\d+", re.sub(r"<tools>.*?</tools>", " ", prompt, flags=re.DOTALL)[-_LAST:])
    words = words or ["yes"]
    tools = _tools(prompt)
    if tools and draw.random() < 0.6:
        return _call(draw.choice(tools), words, draw)
    place = draw.randrange(len(words))
    return " ".join(words[place : place + draw.randint(1, 2)])


def _tools(prompt: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for block in re.findall(r"<tools>\n(.*?)\n</tools>", prompt, re.DOTALL):
        for line in block.splitlines():
            try:
                schema: Any = json.loads(line)
            except ValueError:
                continue
            if isinstance(schema, dict):
                found.append(schema.get("function", schema))
    return found


def _call(schema: Mapping[str, Any], words: Sequence[str], draw: random.Random) -> str:
    numbers = [word for word in words if word.lstrip("-").isdigit()] or ["1"]
    arguments: dict[str, Any] = {}
    for name, about in schema.get("parameters", {}).get("properties", {}).items():
        kind, place = about.get("type"), draw.randrange(len(words))
        if kind in ("integer", "number"):
            arguments[name] = int(draw.choice(numbers)[:9])
        elif kind == "boolean":
            arguments[name] = draw.random() < 0.5
        elif about.get("enum"):
            arguments[name] = draw.choice(about["enum"])
        else:
            arguments[name] = " ".join(words[place : place + 2])
    return f"<tool_call>{json.dumps({'name': schema.get('name'), 'arguments': arguments})}</tool_call>"


class Replay:
    """An engine that repeats what was sampled in recorded episodes, token by token, by their ids.

    Args:
        episodes: The recorded episodes.
        close_id: The token that ends a turn; also played once the recorded turns are used up.
        before: Awaited before each turn, with the episode's id and the number of the turn.
    """

    def __init__(
        self,
        episodes: Sequence[Trajectory],
        close_id: int,
        before: Callable[[str, int], Awaitable[None]] | None = None,
    ) -> None:
        self._scripts = {episode.episode_id: _replies(episode) for episode in episodes}
        self._close_id = close_id
        self._before = before
        self._turns: dict[str, int] = {}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """The recorded turn."""
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        if self._before is not None:
            await self._before(session, turn)
        script = self._scripts.get(session, [])
        ids = script[turn] if turn < len(script) else [self._close_id]
        return Generation(ids, [0.0] * len(ids), "stop")


def _replies(episode: Trajectory) -> list[list[int]]:
    return [list(episode.buffer(turn.branch).ids[turn.start : turn.stop]) for turn in episode.turns]


def scripted_starts(subject: Subject) -> list[EpisodeStart]:
    """The starts of training, under ids that no episode of the model has."""
    return [replace(start, episode_id=f"{start.episode_id}-scripted") for start in subject.starts()]


async def scripted_episodes(subject: Subject) -> list[Trajectory]:
    """Episodes whose actions other checks repeat: of plausible texts and, if there is a model, of its first episodes.

    All are played one after another, so that repetitions can be compared with them; the model's turns are replayed.
    """
    return await subject.once(play_scripted)


async def play_scripted(subject: Subject) -> list[Trajectory]:
    """Play the scripted episodes."""
    starts, played = scripted_starts(subject), list[Trajectory]()
    for start in starts:
        played += await subject.play(plausible_reply, [start])
    if subject.engine is not None:
        episodes = await model_episodes(subject)
        replay = Replay(episodes, subject.chat.close_id)
        for start in model_starts(subject)[: len(episodes) : MODEL_SAMPLES][: subject.episodes]:
            played += await subject.play(replay, [start])
    return played


def starts_of(subject: Subject, episodes: Sequence[Trajectory]) -> list[EpisodeStart]:
    """The starts of scripted episodes, in the same order."""
    known = {start.episode_id: start for start in [*scripted_starts(subject), *model_starts(subject)]}
    return [known[episode.episode_id] for episode in episodes]


def model_starts(subject: Subject) -> list[EpisodeStart]:
    """Where the model's episodes begin: several from each start, as in a group of training."""
    return [
        replace(start, episode_id=f"{start.episode_id}-{sample}")
        for start in subject.starts(sum(MODEL_BATCHES))
        for sample in range(MODEL_SAMPLES)
    ]


async def model_episodes(subject: Subject) -> list[Trajectory]:
    """Episodes of the model, played once for all checks. There must be a model.

    As many batches are played as fit into half a minute. Each is played to its end, because stopping early would keep
    only the short episodes.
    """
    return await subject.once(play_model)


async def play_model(subject: Subject) -> list[Trajectory]:
    """Play episodes of the model."""
    assert subject.engine is not None
    starts, played, began = model_starts(subject), list[Trajectory](), time.perf_counter()
    for number in MODEL_BATCHES:
        size = number * MODEL_SAMPLES
        spent = time.perf_counter() - began
        if played and spent * (1 + size / len(played)) > MODEL_SECONDS:
            break
        batch = starts[len(played) : len(played) + size]
        played += await subject.play(subject.engine, batch, concurrency=size)
    return played


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
    """Both texts around the place where they first differ."""
    pairs = enumerate(zip(first, second, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
    start = max(0, place - 20)
    return " and ".join(repr(text[start : place + 30]) for text in (first, second))
