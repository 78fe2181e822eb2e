"""What an agent does to its history never changes what the model sampled, and nothing is trained on twice."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.fuzz.histories import TOOLS, FuzzedAgent, make_chat, run
from transformers import AutoTokenizer

from turnsmith.gateway.forest import Forest
from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelRequest, Refusal, RequestedCall
from turnsmith.gateway.turns import Continuation, Prompt, SampledTurn
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation
from turnsmith.tools.parsing import FunctionCallingParser


@pytest.fixture(scope="module")
def chat(smollm2_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(smollm2_folder))


@pytest.fixture
def forest(chat: Chat) -> Forest:
    return Forest(chat, FunctionCallingParser())


USER, SYSTEM = ChatMessage("user", "Hi"), ChatMessage("system", "Be kind.")


def play(
    forest: Forest,
    chat: Chat,
    messages: list[ChatMessage],
    text: str,
    *,
    tools: tuple[dict[str, Any], ...] = (),
    calls: tuple[RequestedCall, ...] = (),
    thought: str = "",
) -> SampledTurn:
    """Ask for a turn, in which the model spells the text letter by letter: not as the tokenizer would."""
    prompt = forest.prompt(ModelRequest(tuple(messages), tools))
    ids = [token for letter in thought + text for token in chat.encode(letter)] + [chat.close_id]
    turn = forest.add(prompt, Generation(ids, [-1.0] * len(ids)), ChatMessage("assistant", text, calls))
    turn.is_delivered = True
    return turn


def texts(forest: Forest, chat: Chat) -> list[str]:
    return [chat.show(segment.tokens.ids) for segment in forest.segments()]


def test_a_conversation_is_one_segment(forest: Forest, chat: Chat):
    first = play(forest, chat, [SYSTEM, USER], "Hello")
    second = play(forest, chat, [SYSTEM, USER, first.reply, ChatMessage("user", "Go on")], "Bye")
    (segment,) = forest.segments()
    assert second.continuation is Continuation.BRIDGED
    assert [turn for turn, _, _ in segment.spans] == [first, second]
    assert chat.show(segment.tokens.ids) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "Hello<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\nBye<|im_end|>"
    )


@pytest.mark.parametrize(
    "sent",
    [
        ChatMessage("assistant", "Look", (RequestedCall("look", '{ "n": 1, "at": "x" }', "other"),)),
        ChatMessage("assistant", " Look\n", (RequestedCall("look", '{"at":"x","n":1}'),)),
        ChatMessage("assistant", "", (RequestedCall("look", '{"at":"x","n":1}'),)),
    ],
    ids=["re-serialised", "white space", "text dropped"],
)
def test_what_agents_do_to_a_message_is_no_edit(forest: Forest, chat: Chat, sent: ChatMessage):
    calls = (RequestedCall("look", '{"at":"x","n":1}', "call_1"),)
    first = play(forest, chat, [USER], "Look", calls=calls, tools=TOOLS)
    second = play(forest, chat, [USER, sent, ChatMessage("tool", "a door", call_id="call_1")], "Fine", tools=TOOLS)
    assert second.parent is first
    assert second.continuation is Continuation.BRIDGED


def test_an_edited_answer_is_a_branch_with_the_edit_as_context(forest: Forest, chat: Chat):
    first = play(forest, chat, [USER], "yes")
    edited = play(forest, chat, [USER, ChatMessage("assistant", "no"), ChatMessage("user", "Why?")], "So")
    assert (edited.parent, edited.continuation) == (None, Continuation.EDITED)
    one, other = forest.segments()
    assert ([turn for turn, _, _ in one.spans], [turn for turn, _, _ in other.spans]) == ([first], [edited])
    assert "assistant\nno<|im_end|>" in chat.show(other.tokens.ids)
    assert sum(other.tokens.mask) == len(edited.ids)


def test_a_turn_that_was_cut_is_closed_before_the_next_message_and_that_is_not_trained_on(forest: Forest, chat: Chat):
    cut = forest.add(
        forest.prompt(ModelRequest((USER,))),
        Generation(chat.encode("Hel"), [-1.0] * len(chat.encode("Hel"))),
        ChatMessage("assistant", "Hel"),
    )
    second = play(forest, chat, [USER, cut.reply, ChatMessage("user", "Go on")], "Bye")
    (segment,) = forest.segments()
    assert "assistant\nHel<|im_end|>\n<|im_start|>user\nGo on<|im_end|>" in chat.show(segment.tokens.ids)
    assert sum(segment.tokens.mask) == len(cut.ids) + len(second.ids)


def test_a_history_with_an_edit_and_a_sampled_turn_is_called_edited(forest: Forest, chat: Chat):
    sampled = play(forest, chat, [USER], "yes").reply
    why, edit = ChatMessage("user", "Why?"), ChatMessage("assistant", "no")
    for history in ([edit, why, sampled], [sampled, why, edit]):
        turn = play(forest, chat, [SYSTEM, USER, *history, ChatMessage("user", "So?")], "Well")
        assert (turn.parent, turn.continuation) == (None, Continuation.EDITED)


def test_a_branch_is_context_where_its_turns_were_trained_before(forest: Forest, chat: Chat):
    first = play(forest, chat, [USER], "yes")
    left = play(forest, chat, [USER, first.reply, ChatMessage("user", "left")], "L")
    right = play(forest, chat, [USER, first.reply, ChatMessage("user", "right")], "R")
    one, other = forest.segments()
    assert [turn for turn, _, _ in one.spans] == [first, left]
    assert [turn for turn, _, _ in other.spans] == [right]
    assert sum(one.tokens.mask) + sum(other.tokens.mask) == sum(len(turn.ids) for turn in forest.turns)


@pytest.mark.parametrize("change", ["system prompt", "tools"])
def test_another_prompt_is_a_new_root_with_what_was_sampled(forest: Forest, chat: Chat, change: str):
    first = play(forest, chat, [SYSTEM, USER], "Hello")
    system = ChatMessage("system", "Be brief.") if change == "system prompt" else SYSTEM
    tools = TOOLS if change == "tools" else ()
    second = play(forest, chat, [system, USER, first.reply, ChatMessage("user", "Go on")], "Bye", tools=tools)
    assert (second.parent, second.continuation) == (None, Continuation.SPLICED)
    assert first.ids.tobytes() in second.context.tobytes()  # letter by letter, as it was sampled
    assert chat.encode("Hello") != list(first.ids[:-1])
    assert [sum(segment.tokens.mask) for segment in forest.segments()] == [len(first.ids), len(second.ids)]


def test_tools_are_described_where_the_template_does_not(forest: Forest, chat: Chat):
    play(forest, chat, [SYSTEM, USER], "Hello", tools=TOOLS)
    assert "Be kind.\n\nYou may call one or more functions" in texts(forest, chat)[0]


def test_an_answer_that_was_never_delivered_is_not_trained_on(forest: Forest, chat: Chat):
    lost = play(forest, chat, [USER], "lost")
    lost.is_delivered = False
    again = play(forest, chat, [USER], "again")
    assert [[turn for turn, _, _ in segment.spans] for segment in forest.segments()] == [[again]]


def test_a_history_that_repeats_an_answer_shows_that_it_was_delivered(forest: Forest, chat: Chat):
    first = play(forest, chat, [USER], "yes")
    first.is_delivered = False
    play(forest, chat, [USER, first.reply, ChatMessage("user", "Go on")], "Bye")
    assert first.is_delivered
    assert len(forest.segments()[0].spans) == 2


def test_equal_answers_to_the_same_question_are_two_turns(forest: Forest, chat: Chat):
    first, second = (play(forest, chat, [USER], "yes") for _ in range(2))
    third = play(forest, chat, [USER, first.reply, ChatMessage("user", "Go on")], "Bye")
    assert third.parent is second
    assert sorted(turn.number for segment in forest.segments() for turn, _, _ in segment.spans) == [0, 1, 2]


def test_of_answers_that_read_alike_the_one_that_was_received_is_continued(forest: Forest, chat: Chat):
    """Two samples with other thinking; the connection of the second was cut."""
    kept, lost = (play(forest, chat, [USER], "yes", thought=thought) for thought in ("Hm. ", "Well. "))
    lost.is_delivered = False
    again = ChatMessage("user", "Go on")
    third = play(forest, chat, [USER, kept.reply, again], "Bye")
    assert (third.parent, third.continuation) == (kept, Continuation.BRIDGED)
    spliced = play(forest, chat, [ChatMessage("system", "Be kind."), USER, kept.reply, again], "Bye")
    assert (spliced.continuation, chat.text(kept.ids) in chat.text(spliced.context)) == (Continuation.SPLICED, True)
    assert not lost.is_delivered
    assert [[turn.number for turn, _, _ in segment.spans] for segment in forest.segments()] == [[0, 2], [3]]


STRICT = """{% for message in messages %}{% if message.role == 'system' and not loop.first %}
{{ raise_exception('a system message must come first') }}{% endif %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_turn_is_found_though_a_request_that_could_have_led_to_it_came_before_it(forest: Forest, chat: Chat):
    calls = [(RequestedCall("look", "{}", name),) for name in ("call_1", "call_2", "")]
    for number in (0, 1):  # the same call in two samples
        play(forest, chat, [USER], f"Look {number}", calls=calls[number], tools=TOOLS)
    one, other, either = ([USER, ChatMessage("assistant", "", call), ChatMessage("tool", "a door")] for call in calls)
    play(forest, chat, other, "A", tools=TOOLS)
    play(forest, chat, [*either, USER], "B", tools=TOOLS)  # only the second sample has been followed by a door
    late = play(forest, chat, one, "C", tools=TOOLS)
    last = play(forest, chat, [*either, late.reply, USER], "D", tools=TOOLS)
    assert last.parent is late
    assert last.continuation is Continuation.BRIDGED


def test_a_conversation_that_the_template_cannot_show_is_refused(tiny_folder: str):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = STRICT
    forest = Forest(Chat(tokenizer), FunctionCallingParser())
    with pytest.raises(Refusal, match="a system message must come first"):
        forest.prompt(ModelRequest((USER, SYSTEM)))


def test_a_long_foreign_history_costs_linear_time(forest: Forest, chat: Chat):
    import time

    def seconds(turns: int) -> float:
        history = [USER, ChatMessage("assistant", "yes")] * turns + [USER]
        began = time.process_time()
        forest.prompt(ModelRequest(tuple(history)))
        return time.process_time() - began

    seconds(10)
    short, long = min(seconds(200) for _ in range(3)), min(seconds(2000) for _ in range(3))
    assert long < 30 * short


@pytest.fixture(scope="module")
def fuzzed(smollm2_folder: str) -> tuple[Chat, int]:
    return make_chat(smollm2_folder)


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_histories_keep_every_token(fuzzed: tuple[Chat, int], seed: int):
    counts = run(*fuzzed, 800, seed)
    assert counts["appended"] == counts["bridged"] > 100
    assert counts["tokens"] > 1000


def test_a_turn_trained_twice_would_be_found(fuzzed: tuple[Chat, int], monkeypatch: pytest.MonkeyPatch):
    original = Forest._segment  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Forest, "_segment", lambda self, leaf, trained: original(self, leaf, set()))
    agent = FuzzedAgent(fuzzed[0], random.Random(1), fuzzed[1])
    for _ in range(40):
        agent.request()
    with pytest.raises(AssertionError):
        agent.check()


def test_a_history_that_was_tokenised_again_would_be_found(
    chat: Chat, fuzzed: tuple[Chat, int], monkeypatch: pytest.MonkeyPatch
):
    original = Forest.add

    def add(self: Forest, prompt: Prompt, generation: Generation, reply: ChatMessage) -> SampledTurn:
        again = chat.encode(chat.text(list(generation.token_ids)))
        return original(self, prompt, Generation(again or [1], [0.0] * max(1, len(again))), reply)

    agent = FuzzedAgent(chat, random.Random(1), fuzzed[1])
    agent.request()
    monkeypatch.setattr(Forest, "add", add)
    sampled = agent.sample()
    turn = agent.forest.add(agent.forest.prompt(ModelRequest((USER,))), sampled, agent.hand_out(sampled))
    assert list(turn.ids) != list(sampled.token_ids)


@pytest.mark.parametrize(
    "messages",
    [
        [ChatMessage("user", "word " * 10_000)],
        [USER] * 1001,
        [USER, ChatMessage("assistant", "", (RequestedCall("look"),) * 1001), USER],
    ],
    ids=["text", "messages", "calls"],
)
def test_what_is_far_too_long_is_refused_before_it_is_made_into_tokens(chat: Chat, messages: list[ChatMessage]):
    forest = Forest(chat, FunctionCallingParser(), context=500)
    with pytest.raises(ContextTooLong):
        forest.prompt(ModelRequest(tuple(messages)))


def test_many_characters_may_be_few_tokens(chat: Chat):
    forest = Forest(chat, FunctionCallingParser(), context=500)
    prompt = forest.prompt(ModelRequest((ChatMessage("user", " " * 10_000),)))
    assert len(prompt.ids) < 500
