"""How an environment asks another player: a simulated user, an opponent.

The environment does not know who plays. The code that runs the episode calls `answer_with`, and a question goes to that
function: from the environment's thread and, from a worker process, over its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from turnsmith.concurrency.clocks import paused
from turnsmith.errors import EnvironmentFailure

NO_EPISODE = "no episode is being played"

Messages = list[dict[str, str]]
Asker = Callable[[str, Messages], Awaitable[str]]
"""Gets the player's name and the conversation as that player sees it, and returns what the player says."""

_asker: ContextVar[tuple[Asker, asyncio.AbstractEventLoop] | None] = ContextVar("turnsmith_asker", default=None)


def answer_with(asker: Asker) -> None:
    """Let `asker` answer the questions of environments in this context, on the running event loop."""
    _asker.set((asker, asyncio.get_running_loop()))


def ask(player: str, messages: str | Sequence[Mapping[str, str]]) -> str:
    """What another player says; `players.NAME` in the settings decides who plays it. Blocks: for plain methods.

    Nothing that a player says is trained on: put it into an observation. No time limit counts the time that it takes.

    Args:
        player: Its name.
        messages: The conversation as that player sees it, what it said before as `assistant`; a string is one message.

    Example:
        >>> from turnsmith import BaseEnvironment
        >>> class Chess(BaseEnvironment):
        ...     def reset(self) -> str:
        ...         return "You are white."
        ...
        ...     def step(self, action: str):
        ...         move = self.ask("opponent", f"You are black. White plays {action}.")
        ...         return f"Black plays {move}.", 0.0, False, {}
        >>> Chess().step("e4")
        Traceback (most recent call last):
        turnsmith.errors.EnvironmentFailure: The environment asks the player 'opponent', but no episode is being played.
    """
    asker, loop = _current(player)
    if _running_loop() is loop:
        raise EnvironmentFailure(
            f"ask({player!r}) would block the event loop: write `await self.ask_async(...)` in async methods, or "
            "choose another environment.isolation than loop."
        )
    with paused():
        return asyncio.run_coroutine_threadsafe(_answer(asker, player, messages), loop).result()


async def ask_async(player: str, messages: str | Sequence[Mapping[str, str]]) -> str:
    """`ask` for async methods."""
    asker, loop = _current(player)
    answer = _answer(asker, player, messages)
    with paused():
        if _running_loop() is loop:
            return await answer
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, loop))


def current_asker() -> Asker | None:
    """What `answer_with` set in this context."""
    current = _asker.get()
    return current[0] if current else None


async def _answer(asker: Asker, player: str, messages: Any) -> str:
    return await asker(player, _checked(player, messages))


def _current(player: str) -> tuple[Asker, asyncio.AbstractEventLoop]:
    current = _asker.get()
    if current is None:
        raise EnvironmentFailure(f"The environment asks the player {player!r}, but {NO_EPISODE}.")
    return current


def _checked(player: str, messages: Any) -> Messages:
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    for message in conversation:
        is_message = isinstance(message, Mapping) and {"role", "content"} <= message.keys()
        if not is_message or not all(isinstance(message[key], str) for key in ("role", "content")):
            raise EnvironmentFailure(
                f"ask({player!r}): {message!r} is not a message; it needs a role and a content, both texts."
            )
    if not conversation:
        raise EnvironmentFailure(f"ask({player!r}) was given no message.")
    return [{"role": message["role"], "content": message["content"]} for message in conversation]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
