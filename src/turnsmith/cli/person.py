"""A person in the place of the model: an engine whose turns come from a terminal or a pipe."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TextIO

from turnsmith.errors import EngineFailure
from turnsmith.inference.chat import Chat, Message, ToolSchema
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.terminal import can_draw_live, print_line

_COLOURS = {"system": "35", "user": "36", "tool": "33"}


class ShownChat(Chat):
    """A chat that remembers the messages it has just put into the prompt, so that they can be shown to a person."""

    new: Sequence[Message] = ()
    tools: Sequence[ToolSchema] | None = None

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None = None) -> list[int]:
        """As `Chat.open`."""
        self.new, self.tools = list(messages), tools
        return super().open(messages, tools)

    def bridge(self, new_messages: Sequence[Message], *, closed: bool) -> list[int]:
        """As `Chat.bridge`."""
        self.new, self.tools = list(new_messages), None
        return super().bridge(new_messages, closed=closed)


class PersonEngine:
    """Asks a person for each turn. One episode at a time.

    The episode runs on an event loop in a thread of its own; `serve` reads the answers, in the main thread, because
    that is where Python delivers Ctrl-C, and where an input line gives the terminal back as it was.

    Args:
        chat: The chat that the episode uses.
        raw: Show the exact text of the prompt, control tokens and all, in place of the messages.
        out: Where to show things; None: standard output.
    """

    def __init__(self, chat: ShownChat, *, raw: bool = False, out: TextIO | None = None) -> None:
        self._chat, self._raw, self._out = chat, raw, out or sys.stdout
        self._questions: SimpleQueue[tuple[str, Future[str]] | None] = SimpleQueue()
        self._shown = 0
        self.asked = 0
        """How many turns were asked for."""
        self.left = ""
        """How the person left the game, if they did: `at the end of input` or `with Ctrl-C`."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Show what is new in the prompt and wait for the person; what they type is the turn."""
        text = self._chat.show(prompt_ids[self._shown :]) if self._raw else self._new_messages()
        answer: Future[str] = Future()
        self._questions.put((text, answer))
        said = await asyncio.wrap_future(answer)
        ids = [*self._chat.encode(said), self._chat.close_id]
        kept = ids[: sampling.max_tokens]
        self._shown = len(prompt_ids) + len(kept)
        # A person has no log-probs: such an episode can be read, but not trained on.
        return Generation(kept, [0.0] * len(kept), "length" if len(kept) < len(ids) else "stop", exact=False)

    def serve(self, episode: Future[Any]) -> None:
        """Answer the episode's questions until it has ended. Who has left answers no more; the episode ends with it."""
        episode.add_done_callback(lambda _: self._questions.put(None))
        while (question := self._next_question()) is not None:
            text, answer = question
            if not self.left:
                self._ask(text, answer)
            if self.left and not answer.done():
                answer.set_exception(EngineFailure(f"The person left the game {self.left}."))

    def _next_question(self) -> tuple[str, Future[str]] | None:
        try:
            return self._questions.get()
        except KeyboardInterrupt:  # while the environment is at work; once more, and it is not waited for
            self.left = "with Ctrl-C"
            return self._questions.get()

    def _ask(self, text: str, answer: Future[str]) -> None:
        self.asked += 1
        self.show(text)
        try:
            said = self._read()
            if not answer.done():  # the episode may have run out of time meanwhile
                answer.set_result(said)
        except EOFError:
            self.left = "at the end of input"
        except KeyboardInterrupt:
            self.left = "with Ctrl-C"

    def _new_messages(self) -> str:
        offered = [{"role": "tool offered", "content": json.dumps(tool, indent=2)} for tool in self._chat.tools or ()]
        return "\n".join(self.describe(message) for message in (*offered, *self._chat.new))

    def show(self, text: str) -> None:
        """Print something for the person."""
        print_line(text, self._out)

    def describe(self, message: Message) -> str:
        """A message under its role."""
        role, name = message["role"], message.get("name")
        head = f"--- {role}{f' ({name})' if name else ''} ---"
        if can_draw_live(self._out):
            head = f"\033[1;{_COLOURS.get(role, '37')}m{head}\033[0m"
        return f"{head}\n{message['content']}"

    def _read(self) -> str:
        """One turn: a line; a backslash at its end says that another line follows. Empty lines are asked again."""
        lines: list[str] = []
        while True:
            line = input("...> " if lines else "you> ")
            if not sys.stdin.isatty():
                self.show(line)  # nobody typed it here, so it is not to be seen yet
            if line.endswith("\\"):
                lines.append(line[:-1])
            elif lines or line.strip():
                return "\n".join([*lines, line])
