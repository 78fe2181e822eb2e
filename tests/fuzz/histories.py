"""An agent that rewrites its history in every way that agents do, on an engine that samples any tokens at all.

`python -m tests.fuzz.histories 1000000 --seed 1` makes that many requests and shows its progress; the unit tests make
a few thousand.
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import orjson
from benchmarks import results
from transformers import AutoTokenizer

from turnsmith.gateway.dialects.base import check_messages
from turnsmith.gateway.forest import Forest
from turnsmith.gateway.request import ChatMessage, ModelRequest, RequestedCall
from turnsmith.gateway.turns import Continuation, SampledTurn, Segment
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation
from turnsmith.inference.models import resolve
from turnsmith.tools.parsing import FunctionCallingParser
from turnsmith.trainer.segments import places_in_episode
from turnsmith.trajectory import Trajectory, TurnRecord

TOOLS = ({"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}},)
REWRITES = ("edit", "drop", "reorder", "fork", "compact", "subagent", "tools", "reserialise", "twice", "undelivered")
PROGRESS_SECONDS = 20.0
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
    vocabulary: int
    """How many tokens there are to sample from; to ask the tokenizer takes longer than an episode."""
    seen: dict[int, array[int]] = field(default_factory=dict[int, "array[int]"])
    """By turn: the prompt that the engine got."""
    append_only: int = 0
    bridged: int = 0
    trained: int = 0
    """Sampled tokens that are trained."""

    def __post_init__(self) -> None:
        self.forest = Forest(self.chat, FunctionCallingParser())
        self.drops_text = self.rng.random() < 0.5
        self.conversations = [Conversation([ChatMessage("system", "Be kind."), ChatMessage("user", "Hi")])]

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
            self.seen[turn.number] = prompt.ids[:]
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
        """Every path's tokens are those that the engine saw, and every delivered token is trained exactly once."""
        segments = self.forest.segments()
        trained: dict[int, TurnRecord] = {}
        for branch, segment in enumerate(segments):
            tokens = segment.tokens
            for turn, start, stop in segment.spans:
                assert tokens.ids[:start] == self.seen[turn.number]
                assert list(tokens.ids[start:stop]) == list(turn.generation.token_ids)
                assert tokens.log_probs[start:stop] == array("f", turn.generation.log_probs)
                assert turn.number not in trained
                trained[turn.number] = TurnRecord(start, stop, "stop", 0, branch=branch)
            assert sum(tokens.mask) == sum(stop - start for _, start, stop in segment.spans)
            assert not any(tokens.mask[: tokens.prompt_length])
        delivered = [turn for turn in self.forest.turns if turn.is_delivered]
        assert sorted(trained) == [turn.number for turn in delivered]
        self.check_training([trained[turn.number] for turn in delivered], segments)
        assert self.bridged == self.append_only
        replies: set[bytes] = set()
        for turn in self.forest.turns:
            check_splice(turn, replies)
            replies.add(turn.ids.tobytes())

    def check_training(self, turns: list[TurnRecord], segments: list[Segment]) -> None:
        """What the estimator and the loss get of it: each sampled token once, in the order of sampling."""
        if not segments:
            return
        buffers = [segment.tokens for segment in segments]
        trajectory = Trajectory(tokens=buffers[0], branches=buffers[1:], turns=turns)
        sampled = [token for turn in self.forest.turns if turn.is_delivered for token in turn.ids]
        self.trained += len(sampled)
        ids = [token for buffer in buffers for token in buffer.ids[buffer.prompt_length :]]
        in_loss = zip(places_in_episode(trajectory), trajectory.response_mask(), ids, strict=True)
        rows = sorted((place, token) for place, is_trained, token in in_loss if is_trained)
        assert [token for _, token in rows] == sampled
        assert len({place for place, _ in rows}) == len(sampled)


def check_splice(turn: SampledTurn, sampled: set[bytes]) -> None:
    """Where a history was rewritten, what the model had sampled is in it as sampled."""
    if turn.continuation is not Continuation.SPLICED:
        return
    assert any(message.role == "assistant" for message in turn.messages)
    context = turn.context.tobytes()
    assert any(ids in context for ids in sampled)


def merge(messages: list[ChatMessage]) -> list[ChatMessage]:
    """As the dialects do: what the assistant says in a row is one turn."""
    return list(check_messages([*messages, ChatMessage("user", "")]))[:-1]


def make_chat(folder: str) -> tuple[Chat, int]:
    """A chat that tokenises each text once, because the agent says few different things; and how many tokens it has."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat: Any = Chat(tokenizer)
    chat._encode = lru_cache(10_000)(chat._encode)
    return chat, len(tokenizer)


def run(chat: Chat, vocabulary: int, requests: int, seed: int, per_episode: int = 40) -> Counter[str]:
    """Play episodes with so many requests in all, and check each; returns what was counted."""
    counts, began, told = Counter[str](), time.monotonic(), time.monotonic()
    for episode in range(requests // per_episode):
        agent = FuzzedAgent(chat, random.Random(f"{seed}/{episode}"), vocabulary)
        for _ in range(per_episode):
            agent.request()
        agent.check()
        counts.update(requests=per_episode, appended=agent.append_only, bridged=agent.bridged, tokens=agent.trained)
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            print(f"{counts['requests']:,} of {requests:,} requests after {told - began:.0f} s", flush=True)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz what agents do to their histories.")
    parser.add_argument("requests", type=int)
    parser.add_argument("--seed", type=int, default=1)
    results.add_option(parser)
    asked = parser.parse_args()
    counts = run(*make_chat(resolve("smollm2")), asked.requests, asked.seed)
    print(
        f"seed {asked.seed}: {counts['requests']:,} requests, {counts['appended']:,} of them append-only and "
        f"{counts['bridged']:,} of those bridged; {counts['tokens']:,} tokens trained, each once"
    )
    results.record("histories", counts, is_wanted=asked.json)


if __name__ == "__main__":
    main()
