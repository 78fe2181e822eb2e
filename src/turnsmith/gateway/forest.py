"""The turns of one agent episode as trees of tokens, so that a request continues from the sampled tokens.

An agent sends its whole history with every request, as text. Tokenising that again would give other tokens than the
model sampled. So each turn is kept with its tokens and with the reply that the agent was sent. A request continues the
last turn whose history it repeats, and only its new messages are tokenised.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from turnsmith.errors import ConfigError
from turnsmith.gateway.histories import KnownHistories, last_delivered, reply_keys
from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelRequest, Refusal
from turnsmith.gateway.turns import Continuation, History, MessageKey, Prompt, SampledTurn, Segment
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.parsing import ActionParser
from turnsmith.trajectory import TokenBuffer

_PLAIN_CHARS_PER_TOKEN, _SLICE_CHARS = 8, 4096
"""Text with more characters per token of the context is first counted, in slices of this many characters."""


class Forest:
    """The turns of one episode, in order of sampling; turns are only ever added.

    Args:
        chat: The model's chat template.
        parser: Reads tool calls.
        context: The most tokens that a prompt may have.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.inference.models import resolve
        >>> from turnsmith.tools.parsing import PlainTextParser
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> forest = Forest(chat, PlainTextParser())
        >>> question, again = ChatMessage("user", "Hi"), ChatMessage("user", "Again")
        >>> prompt = forest.prompt(ModelRequest((question,)))
        >>> sampled = Generation([*chat.encode("Hello"), chat.close_id], [0.0] * 6)
        >>> turn = forest.add(prompt, sampled, ChatMessage("assistant", "Hello"))
        >>> prompt = forest.prompt(ModelRequest((question, ChatMessage("assistant", "Hello"), again)))
        >>> prompt.continuation.value, prompt.parent is turn
        ('bridged', True)
    """

    def __init__(self, chat: Chat, parser: ActionParser, *, context: float = math.inf) -> None:
        self._chat = chat
        self._context = context
        self._parser = parser
        self.turns: list[SampledTurn] = []
        self._known = KnownHistories()
        self._by_reply: defaultdict[MessageKey, list[SampledTurn]] = defaultdict(list)

    def prompt(self, request: ModelRequest) -> Prompt:
        """Find the turn that a request continues, and encode its new messages.

        Raises:
            Refusal: The chat template cannot render it, or it is far too long.
        """
        messages = request.messages
        parent, done, history = self._known.deepest(request)
        _mark_delivered(parent)
        self._check_length(messages[done:], () if parent else request.tools)
        groups = list(_groups(messages[done:]))
        names = _call_names(messages, {message.call_id for message in messages[done:] if message.role == "tool"})
        try:
            context, prompt_length = self._begin(groups[0][1], parent, request, names)
            continuation = Continuation.OPENED if parent is None else Continuation.BRIDGED
            for reply, following in groups[1:]:
                assert reply is not None
                sampled = self._by_reply.get(reply.key)
                if not sampled:
                    continuation, ids = Continuation.EDITED, self._chat.encode(_write_reply(reply))
                else:
                    ids = last_delivered(sampled).ids
                    if continuation is not Continuation.EDITED:
                        continuation = Continuation.SPLICED
                context.extend(ids)
                rendered = [_render(message, names) for message in following]
                context.extend(self._chat.bridge(rendered, closed=self._chat.is_closed(ids)))
        except (ConfigError, ValueError) as error:
            raise Refusal(f"The model's chat template cannot show this conversation: {error}") from error
        prompt = Prompt(parent, context, prompt_length, messages[done:], continuation, history)
        if parent is not None:
            prompt.ids = parent.all_ids[:] if parent.all_ids is not None else _path_tokens(parent)
        prompt.ids.extend(context)
        return prompt

    def continues_received(self, request: ModelRequest) -> bool:
        """Whether the turn that a request continues has reached the agent."""
        turn, _, _ = self._known.deepest(request)
        return turn is not None and turn.is_delivered

    def add(self, prompt: Prompt, generation: Generation, reply: ChatMessage) -> SampledTurn:
        """Add a sampled turn, with the reply that the agent is sent."""
        turn = SampledTurn(
            len(self.turns),
            prompt.parent,
            prompt.context,
            prompt.prompt_length,
            array("i", generation.token_ids),
            generation,
            reply,
            prompt.messages,
            prompt.continuation,
            History(),
        )
        self.turns.append(turn)
        turn.all_ids = prompt.ids + turn.ids
        if turn.parent is not None:
            turn.parent.all_ids = None
        keys = reply_keys(reply)
        self._known.add(prompt.history, prompt.messages, turn, keys)
        for key in keys:
            self._by_reply[key].append(turn)
        return turn

    def segments(self) -> list[Segment]:
        """One segment for each last turn; every delivered turn is trained in exactly one of them."""
        delivered = [turn for turn in self.turns if turn.is_delivered]
        inner = {turn.parent for turn in delivered}
        trained: set[int] = set()
        return [self._segment(leaf, trained) for leaf in delivered if leaf not in inner]

    def counts(self) -> Counter[str]:
        """How many turns were opened, bridged, spliced and edited."""
        return Counter(turn.continuation.value for turn in self.turns)

    def _check_length(self, messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]]) -> None:
        """Refuse messages that are far too long without encoding all of them, which would block other episodes.

        Messages that are a little too long pass, and are refused when their tokens are counted.
        """
        texts = [orjson.dumps(tool).decode() for tool in tools]
        for message in messages:
            texts += [message.content, *(f"{call.name}{call.arguments}" for call in message.calls)]
        tokens = len(texts)  # the template adds at least one to each
        if tokens <= self._context and sum(map(len, texts)) <= _PLAIN_CHARS_PER_TOKEN * self._context:
            return
        slices = (text[start : start + _SLICE_CHARS] for text in texts for start in range(0, len(text), _SLICE_CHARS))
        while tokens <= 2 * self._context and (text := next(slices, None)) is not None:
            tokens += len(self._chat.encode(text))
        if tokens > 2 * self._context:
            raise ContextTooLong(tokens, int(self._context), "The rest was not counted.")

    def _begin(
        self,
        messages: Sequence[ChatMessage],
        parent: SampledTurn | None,
        request: ModelRequest,
        names: dict[str, str],
    ) -> tuple[array[int], int]:
        rendered = [_render(message, names) for message in messages]
        if parent is not None:
            closed = self._chat.is_closed(parent.ids)
            return array("i", self._chat.bridge(rendered, closed=closed)), 0
        schemas = None
        if request.tools:
            if self._parser.is_native and self._chat.renders_tools:
                schemas = list(request.tools)
            else:
                _add_instructions(rendered, self._parser.instructions(_definitions(request.tools)))
        opening = array("i", self._chat.open(rendered, tools=schemas))
        return opening, len(opening)

    def _segment(self, leaf: SampledTurn, trained: set[int]) -> Segment:
        path = list(_path(leaf))
        root, tokens = path[0], TokenBuffer()
        tokens.open(root.context[: root.prompt_length])
        tokens.append_context(root.context[root.prompt_length :])
        spans: list[tuple[SampledTurn, int, int]] = []
        for turn in path:
            if turn is not root:
                tokens.append_context(turn.context)
            if turn.number in trained:
                tokens.append_context(turn.ids)
                continue
            trained.add(turn.number)
            spans.append((turn, *tokens.append_model(turn.ids, turn.generation.log_probs)))
        return Segment(tokens, spans)


def _path(turn: SampledTurn | None) -> Iterator[SampledTurn]:
    path: list[SampledTurn] = []
    while turn is not None:
        path.append(turn)
        turn = turn.parent
    return reversed(path)


def _path_tokens(turn: SampledTurn) -> array[int]:
    tokens = array("i")
    for ancestor in _path(turn):
        tokens.extend(ancestor.context)
        tokens.extend(ancestor.ids)
    return tokens


def _groups(messages: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage | None, list[ChatMessage]]]:
    """Each assistant message with the messages that follow it; None with those before the first."""
    reply: ChatMessage | None = None
    following: list[ChatMessage] = []
    for message in messages:
        if message.role == "assistant":
            yield reply, following
            reply, following = message, []
        else:
            following.append(message)
    yield reply, following


def _mark_delivered(turn: SampledTurn | None) -> None:
    """Mark a turn that the agent has repeated, and all turns before it, as delivered."""
    while turn is not None and not turn.is_delivered:
        turn.is_delivered = True
        turn = turn.parent


def _call_names(messages: Sequence[ChatMessage], call_ids: set[str]) -> dict[str, str]:
    """The names of the tools of these calls, which are usually among the last messages."""
    names: dict[str, str] = {}
    for message in reversed(messages):
        if names.keys() == call_ids:
            break
        for call in message.calls:
            if call.id and call.id in call_ids:
                names.setdefault(call.id, call.name)
    return names


def _render(message: ChatMessage, names: dict[str, str]) -> dict[str, str]:
    rendered = {"role": message.role, "content": message.content}
    name = names.get(message.call_id) if message.role == "tool" else None
    return {**rendered, "name": name} if name else rendered


def _write_reply(reply: ChatMessage) -> str:
    """An assistant message that the model did not write, with tool calls in the most common format."""
    calls = [
        f"<tool_call>\n{orjson.dumps({'name': call.name, 'arguments': call.parsed_arguments()}).decode()}\n</tool_call>"
        for call in reply.calls
    ]
    return "\n".join(filter(None, [reply.content, *calls]))


def _add_instructions(rendered: list[dict[str, str]], instructions: str) -> None:
    if rendered and rendered[0]["role"] == "system":
        rendered[0]["content"] = "\n\n".join(filter(None, [rendered[0]["content"], instructions]))
    elif instructions:
        rendered.insert(0, {"role": "system", "content": instructions})


def _definitions(tools: Sequence[dict[str, Any]]) -> list[ToolDefinition]:
    return [ToolDefinition(**tool["function"]) for tool in tools]
