"""The other players of one episode: asks them, and counts what they say.

An environment asks a player by name (`BaseEnvironment.ask`). What the player says comes back as text, which the model
gets to see in an observation; none of it is trained on.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from turnsmith.concurrency.threads import shared_threads
from turnsmith.errors import EnvironmentFailure, internal_error, is_ours
from turnsmith.importing import import_object
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat_server import ChatServer
from turnsmith.inference.engine import Engine, Sampling, derived_seed
from turnsmith.inference.http_client import is_url
from turnsmith.rollout.attempt import EpisodeStart
from turnsmith.rollout.model_copies import ModelCopies, ModelFolder
from turnsmith.rollout.players import Players, PlayerSetting, past_model, past_models
from turnsmith.tools.parsing.base import answer_start

_SECONDS = 120.0
NOBODY = "and the settings do not say who plays it"
"""Time limit of one answer of a function or a server."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer."""

    text: str
    tokens: int


class EpisodePlayers:
    """The players of one attempt at an episode.

    Args:
        players: Who plays.
        start: The start of the episode; it decides, with the player's name, which past model plays.
        engine: The model that is trained or evaluated.
        chat: Its chat template.
        sampling: How it is sampled.
    """

    __slots__ = ("_chat", "_chosen", "_engine", "_players", "_sampling", "_start", "counts")  # one for every episode

    def __init__(self, players: Players, start: EpisodeStart, engine: Engine, chat: Chat, sampling: Sampling) -> None:
        self._players, self._start, self._chat, self._sampling = players, start, chat, sampling
        self._engine: Engine = getattr(engine, "for_players", engine)
        self._chosen: dict[str, tuple[str, ModelFolder | None]] = {}
        self.counts: dict[str, dict[str, Any]] = {}
        """By name: who it was, how many answers it gave, and their tokens."""

    async def ask(self, name: str, messages: list[dict[str, str]]) -> str:
        """What a player says."""
        setting = self._players.settings.get(name)
        if setting is None:
            known = get_close_matches(name, self._players.settings, n=1)
            raise EnvironmentFailure(
                f"The environment asks the player {name!r}, {NOBODY}: set "
                f"players.{name}=scripted:my_file.py:function, a URL, model:NAME, frozen or self."
                + (f" There is players.{known[0]}." if known else "")
            )
        count = self.counts.setdefault(name, {"who": "", "replies": 0, "tokens": 0})
        number, count["replies"] = count["replies"], count["replies"] + 1
        try:
            count["who"], said = await self._answer(name, setting, messages, number)
        except Exception as error:
            if is_ours(error):
                raise internal_error(error) from error
            raise EnvironmentFailure(f"The player {name!r} ({setting.who}) did not answer: {error}") from error
        count["tokens"] += said.tokens
        return said.text

    async def _answer(
        self, name: str, setting: PlayerSetting, messages: list[dict[str, str]], number: int
    ) -> tuple[str, Said]:
        if setting.who.startswith("scripted:"):
            return setting.who, await self._call(setting.who.removeprefix("scripted:"), name, messages, number)
        seed = derived_seed(self._sampling.seed, self._start.episode_id, name, number)
        if is_url(setting.who):
            server = _server(setting.who, setting.model, name)
            answer = await server.ask(messages, setting.sampling(self._sampling, seed))
            return server.client.name, self._said(answer.text, answer.tokens)
        who, folder = self._choose(name, setting)
        sampling = setting.sampling(self._sampling, seed)
        if folder is None:
            return who, await self._generate(name, self._engine, self._chat, sampling, messages)
        async with _copies.using(folder, self._chat) as (engine, chat):
            return who, await self._generate(name, engine, chat, sampling, messages)

    async def _generate(
        self, name: str, engine: Engine, chat: Chat, sampling: Sampling, messages: list[dict[str, str]]
    ) -> Said:
        sampling = replace(sampling, stop_token_ids=(*chat.stop_token_ids, *sampling.stop_token_ids))
        session = f"{self._start.episode_id}-{name}"
        generation = await engine.generate(chat.open(messages), sampling, session=session)
        generation.check(sampling)
        return self._said(chat.text(generation.token_ids), len(generation.token_ids))

    def _said(self, text: str, tokens: int | None) -> Said:
        start = answer_start(text)  # the other player's reasoning is not part of its answer
        answer = "" if start < 0 else text[start:].strip() if start else text
        return Said(answer, len(self._chat.encode(text)) if tokens is None else tokens)

    async def _call(self, function_name: str, name: str, messages: list[dict[str, str]], number: int) -> Said:
        function = import_object(function_name)
        # The seed comes from the start, as the environment's does: the episodes of a group meet the same player.
        seed = {"seed": derived_seed(self._start.seed, name, number)}
        options = seed if _takes_seed(function) else {}
        text = await shared_threads().run(lambda: function(messages, **options), limit=_SECONDS)
        if hasattr(text, "__await__"):
            text = await text
        if not isinstance(text, str):
            raise EnvironmentFailure(f"{function_name} returned {type(text).__name__}; it must return the text to say")
        return self._said(text, None)

    def _choose(self, name: str, setting: PlayerSetting) -> tuple[str, ModelFolder | None]:
        """Which model plays in this episode, and its folder; None: the one that is trained or evaluated."""
        if name not in self._chosen:
            self._chosen[name] = self._draw_model(name, setting)
        return self._chosen[name]

    def _draw_model(self, name: str, setting: PlayerSetting) -> tuple[str, ModelFolder | None]:
        first, draw = self._players.first, random.Random(f"{self._start.seed}/{name}")
        if setting.who.startswith("model:"):
            return setting.who, ModelFolder.named(setting.who.removeprefix("model:"), first)
        if first is None:
            return "now", None
        if setting.who == "frozen":
            return "first", first
        if draw.random() >= setting.past:
            return "now", None
        past = past_models(self._players.pool)[-setting.pool :] if setting.pool else []
        step = draw.choice([0, *past])
        if not step:
            return "first", first
        return f"step-{step}", replace(first, path=str(past_model(self._players.pool, step)))


_copies = ModelCopies()
_servers: dict[tuple[str, str | None], ChatServer] = {}


def _server(url: str, model: str | None, name: str) -> ChatServer:
    """The connection of this process to a server: all episodes share it."""
    key = url, model
    if key not in _servers:
        _servers[key] = ChatServer(url, model=model, purpose=f"who plays {name!r}", timeout=_SECONDS)
    return _servers[key]


def _takes_seed(function: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False
