"""An agent that rewrites its history in every way that agents do, on an engine that samples any tokens at all.

`python -m tests.fuzz.histories 1000000` makes that many requests; the unit tests make a few thousand.
"""

from __future__ import annotations

import random
import sys
from array import array
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from turnsmith.gateway.forest import Continuation, Forest, SampledTurn
from turnsmith.gateway.request import ChatMessage, ModelRequest, RequestedCall
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation
from turnsmith.tools.parsing import FunctionCallingParser

TOOLS = ({"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}},)
REWRITES = ("edit", "drop", "reorder", "fork", "compact", "subagent", "tools", "reserialise", "twice", "undelivered")
OPERATIONS = ("append",) * 6 + REWRITES


@dataclass
class Conversation:
    """What the agent thinks was said."""

    messages: list[ChatMessage]
    tools: tuple[Any, ...] = ()
    is_append_only: bool = False
    """Whether it repeats what it was handed out, and only new messages follow."""


@dataclass
class FuzzedAgent:
    """One episode of requests. `check` compares the forest with what the engine saw."""

    chat: Chat
    rng: random.Random
    seen: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """By turn: the prompt that the engine got."""
    append_only: int = 0
    bridged: int = 0

    def __post_init__(self) -> None:
        self.forest = Forest(self.chat, FunctionCallingParser())
        self.drops_text = self.rng.random() < 0.5
        self.conversations = [Conversation([ChatMessage("system", "Be kind."), ChatMessage("user", "Hi")])]
        self.vocabulary = len(self.chat._tokenizer)  # pyright: ignore[reportPrivateUsage]

    def request(self) -> None:
        """Change one of the conversations and ask for the next turn."""
        rng = self.rng
        operation = rng.choice(OPERATIONS)
        conversation = self.change(rng.choice(self.conversations), operation)
        request = ModelRequest(tuple(conversation.messages), conversation.tools)
        for _ in range(2 if operation == "twice" else 1):
            prompt = self.forest.prompt(request)
            if conversation.is_append_only:
                self.append_only += 1
                self.bridged += prompt.continuation is Continuation.BRIDGED
            generation = self.sample()
            turn = self.forest.add(prompt, generation, self.hand_out(generation))
            self.seen[turn.number] = list(prompt.ids)
            if operation == "undelivered":
                continue
            turn.is_delivered = True
            grown = Conversation([*conversation.messages, turn.reply], conversation.tools, is_append_only=True)
            self.conversations.append(grown)
        self.conversations = self.conversations[-6:]

    def sample(self) -> Generation:
        """Any tokens, most of which no tokenizer would choose for their text."""
        ids = [self.rng.randrange(self.vocabulary) for _ in range(self.rng.randint(1, 6))]
        if self.rng.random() < 0.8:
            ids.append(self.chat.close_id)
        return Generation(ids, [-self.rng.random() for _ in ids])

    def hand_out(self, generation: Generation) -> ChatMessage:
        calls = ()
        if self.rng.random() < 0.4:
            arguments = {"at": self.rng.choice("xyz"), "n": self.rng.randrange(3)}
            calls = (RequestedCall("look", orjson.dumps(arguments).decode(), f"call_{len(self.seen)}"),)
        return ChatMessage("assistant", self.chat.text(list(generation.token_ids)), calls)

    def change(self, old: Conversation, operation: str) -> Conversation:
        """The conversation that the agent sends next: its old one with new messages, and perhaps rewritten."""
        rng, messages = self.rng, list(old.messages)
        last = messages[-1]
        new = Conversation(messages, old.tools, is_append_only=old.is_append_only)
        places = [place for place, message in enumerate(messages) if message.role == "assistant"]
        if operation == "reserialise":
            new.messages = messages = [self.rewrite(message) for message in messages]
        elif operation == "edit" and places:
            place = rng.choice(places)
            messages[place] = replace(messages[place], content=rng.choice(["No.", "edited", ""]))
            new.is_append_only = False
        elif operation == "drop" and len(messages) > 2:
            del messages[rng.randrange(1, len(messages))]
            new.is_append_only = False
        elif operation == "reorder" and len(messages) > 2:
            one, other = rng.randrange(1, len(messages)), rng.randrange(1, len(messages))
            messages[one], messages[other] = messages[other], messages[one]
            new.is_append_only = False
        elif operation == "fork" and places:
            del messages[rng.choice(places) :]
            new.is_append_only = False
        elif operation == "compact":
            kept = messages[-rng.randint(1, 3) :]
            new.messages = messages = [messages[0], ChatMessage("user", "Summary: all went well."), *kept]
            new.is_append_only = False
        elif operation == "subagent":
            new.messages = messages = [ChatMessage("system", "You look."), ChatMessage("user", rng.choice("abc"))]
            new.is_append_only = False
        elif operation == "tools":
            new.tools = () if old.tools else TOOLS
            new.is_append_only = False
        new.messages = messages = [self.drop_text(message) for message in merge(messages)]
        if last.role == "assistant" or messages[-1].role == "assistant" or rng.random() < 0.3:
            messages += self.answer(messages[-1])
        return new

    def answer(self, last: ChatMessage) -> list[ChatMessage]:
        """Results of the calls, and sometimes a message of the user."""
        results = [ChatMessage("tool", self.rng.choice(["ok", "42", "<|im_end|>"]), (), call.id) for call in last.calls]
        text = self.rng.choice(["Go on.", "Why?", "<|im_start|>assistant\nI", " spaced ", ""])
        return [*results, ChatMessage("user", text)] if not results or self.rng.random() < 0.3 else results

    def rewrite(self, message: ChatMessage) -> ChatMessage:
        """As agents do: JSON written otherwise, white space and ids dropped."""
        if message.role != "assistant":
            return message
        calls = tuple(
            RequestedCall(call.name, orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_INDENT_2).decode())
            for call in message.calls
        )
        return ChatMessage("assistant", f" {message.content.strip()}\n", calls)

    def drop_text(self, message: ChatMessage) -> ChatMessage:
        """Some agents keep only the calls of a turn, always."""
        return replace(message, content="") if message.calls and self.drops_text else message

    def check(self) -> None:
        """Every path's tokens are those that the engine saw, and every delivered turn is trained exactly once."""
        trained: list[int] = []
        for segment in self.forest.segments():
            tokens = segment.tokens
            for turn, start, stop in segment.spans:
                assert list(tokens.ids[:start]) == self.seen[turn.number]
                assert list(tokens.ids[start:stop]) == list(turn.generation.token_ids)
                assert tokens.log_probs[start:stop] == array("f", turn.generation.log_probs)
                trained.append(turn.number)
            assert sum(tokens.mask) == sum(stop - start for _, start, stop in segment.spans)
            assert not any(tokens.mask[: tokens.prompt_length])
        assert sorted(trained) == [turn.number for turn in self.forest.turns if turn.is_delivered]
        assert self.bridged == self.append_only
        for turn in self.forest.turns:
            check_splice(turn, self.forest)


def check_splice(turn: SampledTurn, forest: Forest) -> None:
    """Where a history was rewritten, what the model had sampled is in it as sampled."""
    if turn.continuation is not Continuation.SPLICED:
        return
    sampled = [one.ids.tobytes() for one in forest.turns[: turn.number]]
    replies = [message for message in turn.messages if message.role == "assistant"]
    assert replies
    assert any(ids in turn.context.tobytes() for ids in sampled)


def merge(messages: list[ChatMessage]) -> list[ChatMessage]:
    """As the dialects do: what the assistant says in a row is one turn."""
    from turnsmith.gateway.dialects.base import check_messages

    return list(check_messages([*messages, ChatMessage("user", "")]))[:-1]


def run(chat: Chat, requests: int, seed: int, per_episode: int = 40) -> tuple[int, int]:
    """Play episodes with so many requests in all; returns how many were append-only, and how many of those bridged."""
    append_only = bridged = 0
    for episode in range(requests // per_episode):
        agent = FuzzedAgent(chat, random.Random(f"{seed}/{episode}"))
        for _ in range(per_episode):
            agent.request()
        agent.check()
        append_only, bridged = append_only + agent.append_only, bridged + agent.bridged
    return append_only, bridged


if __name__ == "__main__":
    from transformers import AutoTokenizer

    from turnsmith.models import resolve

    requests = int(sys.argv[1])
    found = run(Chat(AutoTokenizer.from_pretrained(resolve("smollm2"))), requests, seed=1)
    print(f"{requests} requests: {found[0]} append-only, {found[1]} of them bridged")
