"""The model's side of an agent's episode: what a request gets, where its limits are, and what is recorded of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.rollout.recorded import Recorded
from transformers import AutoTokenizer

from turnsmith.concurrency.clocks import Clock, OutOfTime
from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelReply, ModelRequest, Refusal
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.rollout import agent_session
from turnsmith.rollout.agent_session import AgentSession
from turnsmith.rollout.spec import Limits
from turnsmith.rollout.turn_rules import TurnRules
from turnsmith.trajectory import Outcome

CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
LOOK = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},)


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def session_of(chat: Chat, replies: Any, *, sampling: Sampling | None = None, **limits: Any) -> AgentSession:
    engine = Recorded(ScriptedEngine(replies, chat))
    rules = TurnRules.of("e1", chat, limits=Limits(**limits), sampling=sampling or Sampling())
    made = AgentSession(rules, engine, Clock(60))
    made.engine = engine  # type: ignore[attr-defined]
    return made


def asked(session: AgentSession) -> list[Sampling]:
    return [sampling for _, _, sampling in session.engine.calls]  # type: ignore[attr-defined]


async def take(session: AgentSession, text: str = "Hi", **settings: Any) -> ModelReply:
    """The reply to a conversation that begins here; the agent gets it."""
    served = await session.take_turn(ModelRequest((ChatMessage("user", text),), **settings))
    served.turn.is_delivered = True
    return served.reply


async def test_a_reply_says_what_it_is(chat: Chat) -> None:
    session = session_of(chat, ["<think>hm\n</think> yes ", "no", CALL])
    before = int(time.time())
    first, second = await take(session), await take(session, model="mine")
    assert (first.text, first.reasoning, first.calls) == ("yes", "hm", ())
    assert (second.text, second.reasoning, second.model) == ("no", "", "mine")
    assert first.model == session.model_name
    assert before <= first.created <= time.time()
    assert first.id != second.id
    assert first.prompt_tokens == session.count_tokens(ModelRequest((ChatMessage("user", "Hi"),)))
    assert second.completion_tokens == len([*chat.encode("no"), chat.close_id])
    third = await take(session, tools=LOOK)
    assert [(call.name, call.parsed_arguments()) for call in third.calls] == [("look", {"at": "door"})]
    assert (third.text, third.calls[0].id[:5]) == ("", "call_")


async def test_a_call_that_cannot_be_parsed_is_text_and_is_noted(chat: Chat) -> None:
    broken = CALL.replace("}}", "}")
    session = session_of(chat, [broken] * 2)
    assert (await take(session, tools=LOOK)).text == broken
    assert (await take(session)).calls == (), "nothing is parsed where no tool was offered"
    assert [info.get("format_problem") for info in session.infos.values()] == ["unfinished", None]


async def test_only_a_turn_that_ran_out_of_tokens_is_cut(chat: Chat) -> None:
    closed = Generation([*chat.encode("a"), chat.close_id], [0.0] * 2, "length")
    session = session_of(chat, ["a", "a b c d e f", closed], sampling=Sampling(max_tokens=4))
    assert [(await take(session)).is_cut for _ in range(3)] == [False, True, False]


async def test_times_are_those_of_the_turn(chat: Chat) -> None:
    session, began = session_of(chat, ["a"]), time.perf_counter()
    await take(session)
    assert 0 < session.seconds[0] <= time.perf_counter() - began
    assert began < session.last_reply_at <= time.perf_counter()
    assert session.to_trajectory().turns[0].generate_seconds == session.seconds[0]


@pytest.mark.parametrize(
    ("wishes", "unenforced", "noted"),
    [
        ({}, (), None),
        ({"temperature": 0.5}, (), None),
        ({"temperature": 0.5, "top_p": 0.9}, (), {"top_p": 0.9}),
        ({}, ("tool_choice",), {"tool_choice": True}),
        ({"top_k": 3}, ("tool_choice",), {"top_k": 3, "tool_choice": True}),
    ],
)
async def test_a_wish_that_the_plan_does_not_share_is_recorded_and_not_applied(
    chat: Chat, wishes: dict[str, float], unenforced: tuple[str, ...], noted: dict[str, Any] | None
) -> None:
    session = session_of(chat, ["a"], sampling=Sampling(temperature=0.5))
    await take(session, sampling=wishes, unenforced=unenforced)
    assert session.infos[0].get("not_applied") == noted
    assert [(one.temperature, one.top_p, one.top_k) for one in asked(session)] == [(0.5, 1.0, -1)]


async def test_the_same_wish_is_warned_of_once_and_at_most_a_hundred_are(
    chat: Chat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_session, "_warned", set())
    session = session_of(chat, lambda turn, prompt: "a", turns=1000)
    for number in (1, 1, *range(2, 150)):
        await take(session, sampling={"temperature": float(number) + 1})
    told = [record.getMessage() for record in caplog.records if "is not applied" in record.getMessage()]
    assert len(told) == len(set(told)) == 100
    assert '{"temperature": 2.0}' in told[0]


@pytest.mark.parametrize(
    ("turn_tokens", "wanted", "allowed"),
    [(20, None, 20), (20, 7, 7), (20, 0, 1), (20, 50, 20), (9, None, 9), (9, 12, 9), (40, None, 30)],
)
async def test_a_turn_gets_the_least_of_what_plan_request_and_budget_allow(
    chat: Chat, turn_tokens: int, wanted: int | None, allowed: int
) -> None:
    session = session_of(chat, ["a"], sampling=Sampling(max_tokens=turn_tokens), tokens=30, prompt_tokens=500)
    await take(session, max_tokens=wanted)
    assert [one.max_tokens for one in asked(session)] == [allowed]


LONG = "a b c d e f g h i j k l"


@pytest.mark.parametrize(
    ("limits", "wanted", "ended_by"),
    [
        ({"tokens": 5}, None, "token_limit"),
        ({"tokens": 5}, 4, None),
        ({"tokens": 5}, 5, None),
        ({"tokens": 5}, 6, "token_limit"),
        ({"tokens": 8}, None, None),
        ({}, None, None),
    ],
)
async def test_half_a_turn_ends_the_episode_only_if_a_limit_of_ours_cut_it(
    chat: Chat, limits: dict[str, int], wanted: int | None, ended_by: str | None
) -> None:
    session = session_of(chat, [LONG, "a"], sampling=Sampling(max_tokens=8), **limits)
    assert (await take(session, max_tokens=wanted)).is_cut
    assert session.ended_by == (None if ended_by is None else (ended_by, ""))


async def test_each_limit_is_reached_exactly_and_told(chat: Chat) -> None:
    session = session_of(chat, ["a", "b"], turns=2)
    await take(session)
    await take(session)
    assert session.ended_by is None
    with pytest.raises(ContextTooLong, match=r"has used its 2 turns, of which inference\.max_turns allows more"):
        await take(session)
    assert session.ended_by == ("turn_limit", "")


async def test_an_opening_as_long_as_allowed_fits_and_a_longer_one_later_is_no_fault(chat: Chat) -> None:
    length = session_of(chat, []).count_tokens(ModelRequest((ChatMessage("user", "Hi"),)))
    session = session_of(chat, ["a"] * 2, prompt_tokens=length)
    await take(session)
    with pytest.raises(ContextTooLong, match=r"inference\.max_prompt_tokens allows more"):
        await take(session, "Hi there, how are you?")
    assert session.ended_by == ("token_limit", "")
    session = session_of(chat, ["a"], prompt_tokens=length - 1)
    with pytest.raises(ContextTooLong) as told:
        await take(session)
    assert session.ended_by == ("environment_failed", str(told.value))
    assert (told.value.tokens, told.value.limit) == (length, length - 1)


async def test_a_conversation_goes_on_while_one_token_is_left(chat: Chat) -> None:
    messages = (ChatMessage("user", "Hi"), ChatMessage("assistant", "a"), ChatMessage("user", "Go on"))
    begun = session_of(chat, ["a", "b"])
    await take(begun)
    opening, whole = (begun.count_tokens(ModelRequest(part)) for part in (messages[:1], messages))
    for left in (1, 0):
        session = session_of(chat, ["a", "b"], tokens=whole - opening + left)
        await take(session)
        if left:
            await session.take_turn(ModelRequest(messages))
            assert asked(session)[1].max_tokens == 1
        else:
            with pytest.raises(ContextTooLong, match=r"inference\.max_episode_tokens allows more"):
                await session.take_turn(ModelRequest(messages))
            assert session.ended_by == ("token_limit", "")


async def test_calls_up_to_the_limit_are_delivered(chat: Chat) -> None:
    session = session_of(chat, [CALL, CALL, CALL], tool_calls=2)
    for _ in range(2):
        assert len((await take(session, tools=LOOK)).calls) == 1
    with pytest.raises(ContextTooLong, match=r"may make 2 tool calls; inference\.max_tool_calls allows more"):
        await take(session, tools=LOOK)
    assert session.ended_by == ("tool_call_limit", "")
    assert len(session.to_trajectory().turns) == 3, "the model has taken it"


async def test_rewards_are_finite_numbers_for_turns_that_there_are(chat: Chat) -> None:
    session = session_of(chat, ["a", "b"])
    with pytest.raises(Refusal, match="There is no turn None: the model has taken 0 turns"):
        session.add_reward(1.0, None)
    await take(session, "one")
    await take(session, "two")
    for value, turn in ((1.0, 0), (0.5, 0), (2.0, None), (4.0, 1)):
        session.add_reward(value, turn)
    assert session.rewards == {0: 1.5, 1: 6.0}
    for turn in (-1, 2):
        with pytest.raises(Refusal, match=f"There is no turn {turn}") as refused:
            session.add_reward(1.0, turn)
        assert refused.value.param == "turn"
    for value, turn, said in (
        (float("nan"), 0, "A reward must be a finite number"),
        (1e308, 0, r"A reward must be a number from -1e\+15 to 1e\+15"),
        (1e15, 1, r"What the rewards of turn 1 add up to must be a number from -1e\+15 to 1e\+15"),
    ):
        with pytest.raises(Refusal, match=said) as refused:
            session.add_reward(value, turn)
        assert refused.value.param == "value"
    assert session.rewards == {0: 1.5, 1: 6.0}


async def test_a_reward_is_for_a_turn_that_the_agent_has_received(chat: Chat) -> None:
    session = session_of(chat, ["a", "lost", "b", "lost"])
    for text in ("one", "lost", "two", "lost"):
        served = await session.take_turn(ModelRequest((ChatMessage("user", text),)))
        served.turn.is_delivered = text != "lost"
    session.add_reward(1.0, None)
    session.add_reward(0.5, 0)
    assert session.to_trajectory().rewards == [0.5, 1.0]
    with pytest.raises(Refusal, match="There is no turn 2: the model has taken 2 turns"):
        session.add_reward(1.0, 2)


async def test_an_engine_that_fails_is_told_and_the_next_turn_may_succeed(chat: Chat) -> None:
    session = session_of(chat, [OSError("gone"), "a"])
    with pytest.raises(Refusal, match="gone") as refused:
        await take(session)
    assert refused.value.status == 500
    assert session.ended_by == ("engine_failed", str(refused.value))
    await take(session)
    assert session.ended_by is None


async def test_every_turn_has_a_seed_of_its_own_if_the_plan_has_one(chat: Chat) -> None:
    seeded, free = session_of(chat, ["a"] * 3, sampling=Sampling(seed=1)), session_of(chat, ["a"])
    for _ in range(3):
        await take(seeded)
    await take(free)
    assert len({one.seed for one in asked(seeded)}) == 3
    assert [one.seed for one in asked(free)] == [None]


async def test_an_engine_that_returns_more_than_was_asked_for_has_failed(chat: Chat) -> None:
    session = session_of(chat, [Generation([5] * 9, [0.0] * 9)])
    with pytest.raises(Refusal, match="returned 9 tokens; 1 to 8 were requested"):
        await take(session, max_tokens=8)
    assert session.forest.turns == []


async def test_cancelling_is_no_failure_of_the_engine(chat: Chat) -> None:
    async def never(turn: int, prompt: str) -> str:
        await asyncio.sleep(3600)
        return ""

    session = session_of(chat, never)
    task = asyncio.create_task(take(session))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.ended_by is None


async def test_the_clock_stands_still_only_while_the_engine_has_the_turn(chat: Chat) -> None:
    async def slow(turn: int, prompt: str) -> str:
        await asyncio.sleep(0.2)
        return "a"

    taken: list[float] = []

    async def take_and_idle() -> None:
        engine = ScriptedEngine(slow, chat)
        async with Clock(0.1) as clock:
            session = AgentSession(TurnRules.of("e", chat, limits=Limits(), sampling=Sampling()), engine, clock)
            await take(session)
            taken.append(session.seconds[0])
            await asyncio.sleep(10)

    with pytest.raises(OutOfTime):
        await take_and_idle()
    assert taken[0] >= 0.2


class Full:
    """An engine whose context has room for two more tokens."""

    def __init__(self, chat: Chat, *, exact: bool) -> None:
        self.chat, self.exact = chat, exact

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        return Generation(self.chat.encode("ab")[:2], [-1.0] * 2, stop_reason="length", exact=self.exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("wanted", [None, 2, 5])
async def test_a_turn_that_is_shorter_than_allowed_was_cut_by_the_engines_context(
    chat: Chat, exact: bool, wanted: int | None
) -> None:
    rules = TurnRules.of("e", chat, limits=Limits(), sampling=Sampling())
    session = AgentSession(rules, Full(chat, exact=exact), Clock(60))
    await take(session, max_tokens=wanted)
    is_full = exact and wanted != 2  # two tokens are all that the agent wanted; a text has no exact number of them
    assert session.ended_by == ((Outcome.TOKEN_LIMIT, "") if is_full else None)


class Swapping:
    """An engine whose weights change in the middle of each turn."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        ids = [*self.chat.encode("a b"), self.chat.close_id]
        return Generation(ids, [-1.0] * len(ids), weights_version=4, exact=False, swaps=((1, 5),))


async def test_the_record_has_the_conversation_and_where_weights_changed(chat: Chat) -> None:
    session = AgentSession(TurnRules.of("e", chat, limits=Limits(), sampling=Sampling()), Swapping(chat), Clock(60))
    for text in ("one", "two"):
        await take(session, text)
    session.add_reward(1.0, 1)
    record = session.to_trajectory()
    assert (record.states, record.actions, record.rewards) == (["one", "two"], ["a b", "a b"], [0.0, 1.0])
    assert (record.dones, record.exact) == ([False, True], False)
    assert [(turn.weights_version, turn.swaps, turn.branch) for turn in record.turns] == [
        (4, ((turn.start + 1, 5),), branch) for branch, turn in enumerate(record.turns)
    ]
    assert [message["content"] for message in record.messages] == ["one", "a b", "two", "a b"]
    assert session_of(chat, []).to_trajectory().turns == []


async def test_a_state_is_what_the_agent_said_last(chat: Chat) -> None:
    session = session_of(chat, ["a"])
    served = await session.take_turn(
        ModelRequest((ChatMessage("system", "Be brief."), ChatMessage("user", "What now?")))
    )
    served.turn.is_delivered = True
    assert session.to_trajectory().states == ["What now?"]


async def test_a_history_that_is_far_too_long_is_a_fault_only_before_the_first_turn(chat: Chat) -> None:
    session = session_of(chat, ["yes", "no"], prompt_tokens=200, tokens=200)
    with pytest.raises(ContextTooLong):
        await take(session, "word " * 10_000)
    assert (session.ended_by or ("",))[0] is Outcome.ENVIRONMENT_FAILED
    await take(session)
    assert session.ended_by is None
    with pytest.raises(ContextTooLong):
        await take(session, "word " * 10_000)
    assert session.ended_by == (Outcome.TOKEN_LIMIT, "")


async def test_an_assistant_message_of_the_agents_own_that_is_too_long_is_a_fault(chat: Chat) -> None:
    session = session_of(chat, ["yes"], prompt_tokens=200, tokens=100)
    history = (ChatMessage("user", "one"), ChatMessage("assistant", "word " * 150), ChatMessage("user", "two"))
    with pytest.raises(ContextTooLong, match="max_episode_tokens"):
        await session.take_turn(ModelRequest(history))
    assert (session.ended_by or ("",))[0] is Outcome.ENVIRONMENT_FAILED
