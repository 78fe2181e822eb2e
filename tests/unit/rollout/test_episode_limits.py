"""Each limit ends an episode in an outcome of its own, exactly where it says, and never acts on half a turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.inference import Chat, Generation, Sampling, ScriptedEngine
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.rollout import EpisodeStart, Limits, run_episode
from turnsmith.rollout.episode_report import report_of
from turnsmith.tools.tool import tool
from turnsmith.trainer.diagnostics.context import step_record
from turnsmith.trainer.display import plain_line
from turnsmith.trajectory import Outcome, Trajectory


class Desk(BaseEnvironment):
    """Pays 1 for each step and ends at the word `done`; `ring` counts how often it was called."""

    def reset(self) -> str:
        self.rung = 0
        return "Go."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "Go on.", 1.0, action == "done", {"said": action, "rung": self.rung}

    @tool
    def ring(self) -> str:
        """Ring the bell."""
        self.rung += 1
        return "ding"


class Bare(BaseEnvironment):
    """The same without a tool, so that its prompt is short."""

    reset, step = Desk.reset, Desk.step


RING = '<tool_call>{"name": "ring", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


async def play(chat: Chat, replies: Any, *, max_tokens: int = 1000, environment: type = Bare, **limits: Any):
    room = {"tokens": 10_000, "prompt_tokens": 10_000} | limits
    return await run_episode(
        EpisodeStart("e1"),
        environment=EnvironmentSpec.of(environment),
        engine=ScriptedEngine(replies, chat),
        chat=chat,
        limits=Limits(**room),
        sampling=Sampling(max_tokens=max_tokens),
    )


def check_whole(trajectory: Trajectory) -> None:
    """One entry a turn in every list, whatever ended the episode."""
    lists = (trajectory.states, trajectory.actions, trajectory.rewards, trajectory.dones, trajectory.infos)
    assert {len(entries) for entries in lists} == {len(trajectory.turns)}
    assert sum(trajectory.tokens.mask) == sum(turn.stop - turn.start for turn in trajectory.turns)


async def test_turns_exactly_at_the_limit(chat):
    over = await play(chat, ["a", "b", "done"], turns=2)
    assert (over.outcome, over.num_turns, over.rewards) == (Outcome.TURN_LIMIT, 2, [1.0, 1.0])
    fits = await play(chat, ["a", "b", "done"], turns=3)
    assert (fits.outcome, fits.num_turns) == (Outcome.COMPLETED, 3)


async def test_a_turn_exactly_as_long_as_allowed_that_ends_by_itself_is_whole(chat):
    reply = "abcdefg"
    length = len(chat.encode(reply)) + 1  # and the token that ends it
    whole = await play(chat, [reply, "done"], max_tokens=length)
    assert (whole.outcome, whole.actions) == (Outcome.COMPLETED, [reply, "done"])
    assert whole.turns[0].stop - whole.turns[0].start == length


async def test_a_turn_that_the_budget_cuts_ends_the_episode_and_is_not_acted_on(chat):
    reply = "abcdefg"
    length = len(chat.encode(reply)) + 1
    first = len(chat.encode("a")) + 1
    between = len(chat.bridge([{"role": "user", "content": "Go on."}], closed=True))
    cut = await play(chat, ["a", reply, "done"], tokens=first + between + length - 1)
    check_whole(cut)
    assert cut.outcome is Outcome.TOKEN_LIMIT
    assert cut.outcome.is_behaviour
    assert (cut.rewards, cut.dones, cut.infos[1]) == ([1.0, 0.0], [False, False], {})
    assert cut.turns[1].stop - cut.turns[1].start == length - 1
    assert (cut.turns[1].stop_reason, cut.messages[-1]) == ("length", {"role": "assistant", "content": reply})
    assert cut.tokens.mask[-1] == 1


async def test_a_turn_that_max_tokens_cuts_is_acted_on(chat):
    cut = await play(chat, ["abcdefg", "done"], max_tokens=4)
    assert cut.outcome is Outcome.COMPLETED
    assert (cut.turns[0].stop_reason, cut.actions[0], cut.rewards) == ("length", "abcd", [1.0, 1.0])


async def test_an_engine_that_says_length_after_an_end_token_is_not_taken_at_its_word(chat):
    ids = [*chat.encode("done"), chat.close_id]
    trajectory = await play(chat, [Generation(ids, [0.0] * len(ids), "length")], tokens=len(ids))
    assert trajectory.outcome is Outcome.COMPLETED


async def test_the_budget_exactly_used_up_by_a_turn_that_ends_is_whole(chat):
    length = len(chat.encode("done")) + 1
    whole = await play(chat, ["done"], tokens=length)
    assert (whole.outcome, whole.total_reward) == (Outcome.COMPLETED, 1.0)
    cut = await play(chat, ["done"], tokens=length - 1)
    check_whole(cut)
    assert (cut.outcome, cut.rewards, cut.actions) == (Outcome.TOKEN_LIMIT, [0.0], ["done"])
    assert len(cut.tokens) - cut.tokens.prompt_length == length - 1


async def test_an_observation_that_leaves_no_token_for_the_model_ends_it(chat):
    first = len(chat.encode("a")) + 1
    between = len(chat.bridge([{"role": "user", "content": "Go on."}], closed=True))
    over = await play(chat, ["a", "done"], tokens=first + between)
    assert (over.outcome, over.num_turns, over.rewards) == (Outcome.TOKEN_LIMIT, 1, [1.0])
    last = len(chat.encode("done")) + 1
    assert (await play(chat, ["a", "done"], tokens=first + between + last)).outcome is Outcome.COMPLETED


async def test_an_engine_whose_own_context_is_full_ends_it_as_token_limit(chat):
    ids = chat.encode("don")
    trajectory = await play(chat, [Generation(ids, [0.0] * len(ids), "length")])
    assert (trajectory.outcome, trajectory.rewards) == (Outcome.TOKEN_LIMIT, [0.0])


async def test_tokens_counted_from_text_alone_do_not_say_that_a_context_is_full(chat):
    ids = chat.encode("done")
    generation = Generation(ids, [0.0] * len(ids), "length", exact=False)
    assert (await play(chat, [generation], max_tokens=9)).outcome is Outcome.COMPLETED
    assert (await play(chat, [generation], tokens=9)).outcome is Outcome.TOKEN_LIMIT


async def test_tool_calls_exactly_at_the_limit_run(chat):
    trajectory = await play(chat, [RING, RING + RING, "done"], environment=Desk, tool_calls=3)
    assert trajectory.outcome is Outcome.COMPLETED
    assert trajectory.infos[-1]["rung"] == 3


@pytest.mark.parametrize("calls", [[RING, RING + RING], [RING, RING, RING]])
async def test_the_turn_that_goes_over_has_none_of_its_calls_run(chat, calls):
    rung: list[int] = []

    class Watched(Desk):
        def close(self) -> None:
            rung.append(self.rung)

    trajectory = await play(chat, [*calls, "done"], environment=Watched, tool_calls=2)
    check_whole(trajectory)
    assert trajectory.outcome is Outcome.TOOL_CALL_LIMIT
    assert trajectory.outcome.is_behaviour
    assert trajectory.num_turns == len(calls)
    assert rung == [len(calls) - 1]
    asked = calls[-1].count("<tool_call>")
    assert trajectory.infos[-1] == {"tool_calls_not_run": [{"name": "ring", "arguments": {}}] * asked}
    assert trajectory.messages[-1]["role"] == "assistant"
    assert report_of([trajectory]).tools.calls == len(calls) - 1


async def test_turns_without_a_call_do_not_count_as_calls(chat):
    replies = [RING, "a", "<tool_call>{", "b", "done"]
    assert (await play(chat, replies, environment=Desk, tool_calls=1)).outcome is Outcome.COMPLETED


async def test_seconds(chat):
    class Slow(Bare):
        async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
            await asyncio.sleep(0.2)
            return "Go on.", 1.0, False, {}

    trajectory = await play(chat, lambda turn, prompt: "a", environment=Slow, seconds=1.5, turns=100)
    check_whole(trajectory)
    assert trajectory.outcome is Outcome.TIME_LIMIT
    assert 1 <= trajectory.num_turns <= 8


async def test_the_opening_prompt_exactly_at_the_limit(chat):
    length = (await play(chat, ["done"])).tokens.prompt_length
    assert (await play(chat, ["done"], prompt_tokens=length)).outcome is Outcome.COMPLETED
    over = await play(chat, ["done"], prompt_tokens=length - 1)
    assert (over.outcome, over.num_turns) == (Outcome.ENVIRONMENT_FAILED, 0)
    assert "inference.max_prompt_tokens" in over.error


async def test_records_reports_and_views_know_the_new_outcomes(chat, tmp_path):
    cut = await play(chat, ["abcdefg"], tokens=2)
    called = await play(chat, [RING + RING], environment=Desk, tool_calls=1)
    write_episodes(tmp_path, 1, [cut, called])
    assert [episode.outcome for episode in read_episodes(tmp_path)] == [cut.outcome, called.outcome]
    record = step_record(1, 0, {}, report_of([cut, called]))
    assert plain_line(record, 1).endswith("2 episodes: 1 token_limit, 1 tool_call_limit")
