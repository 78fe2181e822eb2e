"""An engine that plays scripted replies: for tests, examples, and measuring everything but the model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence

from turnsmith.errors import EngineFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation, Sampling

Reply = str | Sequence[int] | Generation | Exception
"""Text (followed by the end of the turn), exact token ids, a `Generation`, or an error to raise."""


class ScriptedEngine:
    """Plays a list of replies in each episode, or calls a function for each turn.

    The function gets the index of the turn in its episode and the whole prompt as text; it may be async.

    Example:
        >>> import asyncio
        >>> from turnsmith.inference.models import resolve
        >>> from transformers import AutoTokenizer
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> engine = ScriptedEngine(["left", "right"], chat)
        >>> prompt = chat.open([{"role": "user", "content": "Where to?"}])
        >>> generation = asyncio.run(engine.generate(prompt, Sampling(), session="episode-1"))
        >>> chat.text(generation.token_ids), generation.stop_reason
        ('left', 'stop')
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[int, str], Reply | Awaitable[Reply]],
        chat: Chat,
        *,
        log_prob: float = 0.0,
    ) -> None:
        self._replies = replies
        self._chat = chat
        self._log_prob = log_prob
        self._turns: dict[str, int] = {}

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Return the session's next reply, truncated to `sampling.max_tokens`."""
        turn = self._turns.get(session, 0)
        self._turns[session] = turn + 1
        if callable(self._replies):
            reply = self._replies(turn, self._chat.show(prompt_ids))
            if inspect.isawaitable(reply):
                reply = await reply
        elif turn < len(self._replies):
            reply = self._replies[turn]
        else:
            raise EngineFailure(f"The script has {len(self._replies)} replies, but turn {turn + 1} was asked for.")
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Generation):
            return reply
        ids = [*self._chat.encode(reply), self._chat.close_id] if isinstance(reply, str) else list(reply)
        reason = "length" if len(ids) > sampling.max_tokens else "stop"
        ids = ids[: sampling.max_tokens]
        return Generation(ids, [self._log_prob] * len(ids), reason)
