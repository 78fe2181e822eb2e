"""A person in place of the model: an engine that reads its turns from a terminal or a pipe."""

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
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.text import can_draw_live, print_line, printable

_COLOURS = {"system": "35", "user": "36", "tool": "33"}


class RecordingChat:
    """A chat that keeps the messages last added to the prompt, so that they can be shown to a person."""

    def __init__(self, chat: Chat | ByteChat) -> None:
        self._chat = chat
        self.new_messages: Sequence[Message] = ()
        self.new_tools: Sequence[ToolSchema] | None = None

    def __getattr__(self, name: str) -> Any:
        """Everything else comes from the chat itself."""
        return getattr(self._chat, name)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None = None) -> list[int]:
        """See `Chat.open`."""
        self.new_messages, self.new_tools = list(messages), tools
        return self._chat.open(messages, tools)

    def bridge(self, new_messages: Sequence[Message], *, closed: bool) -> list[int]:
        """See `Chat.bridge`."""
        self.new_messages, self.new_tools = list(new_messages), None
        return self._chat.bridge(new_messages, closed=closed)


class HumanEngine:
    """An engine whose turns a person types, for one episode at a time.

    The episode runs on an event loop in another thread. `answer_until_done` reads the input in the main thread, because
    that is where Python delivers Ctrl-C and where `input` restores the terminal.

    Args:
        chat: The episode's chat.
        raw: Show the exact text of the prompt with its control tokens, not the messages.
        out: Where to print; None is standard output.
    """

    def __init__(self, chat: RecordingChat, *, raw: bool = False, out: TextIO | None = None) -> None:
        self._chat, self._raw, self._out = chat, raw, out or sys.stdout
        self._requests: SimpleQueue[tuple[str, Future[str]] | None] = SimpleQueue()
        self._tokens_shown = 0
        self.prompts_shown = 0
        """How many turns the person was asked for."""
        self.exit_reason = ""
        """Why the person quit, if they did: `Ctrl-C` or `end of input`."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Show what is new in the prompt and wait for the person to type the turn."""
        new = prompt_ids[self._tokens_shown :]
        text = printable(self._chat.show(new)) if self._raw else self._describe_new()
        answer: Future[str] = Future()
        self._requests.put((text, answer))
        ids = [*self._chat.encode(await asyncio.wrap_future(answer)), self._chat.close_id]
        kept = ids[: sampling.max_tokens]
        self._tokens_shown = len(prompt_ids) + len(kept)
        # Typed text has no log-probs: the episode can be read, but not trained on.
        return Generation(kept, [0.0] * len(kept), "length" if len(kept) < len(ids) else "stop", exact=False)

    def answer_until_done(self, episode: Future[Any]) -> None:
        """Ask the person for each turn until the episode ends; once they quit, fail every further request."""
        episode.add_done_callback(lambda _: self._requests.put(None))
        while (request := self._next_request()) is not None:
            text, answer = request
            if not self.exit_reason:
                self._ask(text, answer)
            if self.exit_reason and not answer.done():
                answer.set_exception(EngineFailure(f"The player quit ({self.exit_reason})."))

    def _next_request(self) -> tuple[str, Future[str]] | None:
        try:
            return self._requests.get()
        except KeyboardInterrupt:  # the environment is busy; a second Ctrl-C no longer waits for it
            self.exit_reason = "Ctrl-C"
            return self._requests.get()

    def _ask(self, text: str, answer: Future[str]) -> None:
        self.prompts_shown += 1
        self.show(text, is_styled=True)
        try:
            turn = self._read_turn()
            if not answer.done():  # the episode may have timed out meanwhile
                answer.set_result(turn)
        except EOFError:
            self.exit_reason = "end of input"
        except KeyboardInterrupt:
            self.exit_reason = "Ctrl-C"

    def _describe_new(self) -> str:
        tools = [{"role": "tool offered", "content": json.dumps(tool, indent=2)} for tool in self._chat.new_tools or ()]
        return "\n".join(self.describe(message) for message in (*tools, *self._chat.new_messages))

    def show(self, text: str, *, is_styled: bool = False) -> None:
        """Print a text for the person, in the style that `describe` gave it."""
        print_line(text, self._out, is_styled=is_styled)

    def describe(self, message: Message) -> str:
        """A message under a line with its role."""
        role, name = message["role"], message.get("name")
        head = printable(f"--- {role}{f' ({name})' if name else ''} ---")
        if can_draw_live(self._out):
            head = f"\033[1;{_COLOURS.get(role, '37')}m{head}\033[0m"
        return f"{head}\n{printable(message['content'])}"

    def _read_turn(self) -> str:
        """Read one turn: a line, or several if all but the last end with a backslash. Skips empty lines."""
        lines: list[str] = []
        while True:
            line = input("...> " if lines else "you> ")
            if not sys.stdin.isatty():
                self.show(line)  # input from a pipe is not echoed
            if line.endswith("\\"):
                lines.append(line[:-1])
            elif lines or line.strip():
                return "\n".join([*lines, line])
