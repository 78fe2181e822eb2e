"""The packed record of a running episode: the trajectory made from it has everything that went in, unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith import Chat, Generation, Trajectory
from turnsmith.rollout.buffer import EpisodeBuffer, _pack
from turnsmith.rollout.turn import TurnResult
from turnsmith.tools.definition import ToolCall
from turnsmith.trajectory import TurnRecord


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def opened(chat: Chat) -> EpisodeBuffer:
    buffer = EpisodeBuffer()
    buffer.set_opening(
        "A door.", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Now: A door."}]
    )
    buffer.set_prompt([5, 6, 7])
    return buffer


def test_an_episode_that_never_began_is_empty(chat: Chat) -> None:
    assert EpisodeBuffer().to_trajectory(chat) == Trajectory()


def test_a_turn_that_nothing_answered_yet_is_not_the_end(chat: Chat) -> None:
    buffer = EpisodeBuffer()
    buffer.append_turn(Generation([5, 6], [-0.5, -0.5]), seconds=0.1)
    trajectory = buffer.to_trajectory(chat)
    assert (trajectory.dones, trajectory.rewards, trajectory.infos) == ([False], [0.0], [{}])
    assert (trajectory.tokens.prompt_length, trajectory.exact) == (0, True)
    buffer.append_turn(Generation([5], [-0.5], exact=False), seconds=0.1)
    buffer.append_turn(Generation([5], [-0.5]), seconds=0.1)
    assert not buffer.to_trajectory(chat).exact, "one turn is enough"


def test_a_prompt_that_was_too_long_keeps_its_messages_and_no_tokens(chat: Chat) -> None:
    buffer = EpisodeBuffer()
    buffer.set_opening("A door.", [{"role": "user", "content": "A door."}])
    assert buffer.to_trajectory(chat) == Trajectory(messages=[{"role": "user", "content": "A door."}])


def test_two_turns_come_out_as_they_went_in(chat: Chat) -> None:
    buffer = opened(chat)
    info = {"object": object()}
    first, second = chat.encode("push"), [*chat.encode("go"), chat.close_id]
    buffer.append_turn(Generation(first, [-0.5] * len(first), "length", 3, swaps=((1, 4), (2, 6))), seconds=0.25)
    buffer.set_step_seconds(0.125)
    buffer.append_result(TurnResult([{"role": "user", "content": "It opens."}], reward=0.1, info=info))
    buffer.append_bridge([8, 9])
    buffer.append_turn(Generation(second, [-0.25] * len(second), "stop", 6, exact=False), seconds=0.5)
    trajectory = buffer.to_trajectory(chat)  # the second step failed, or was never done
    assert trajectory.turns == [
        TurnRecord(3, 7, "length", 3, 0.25, 0.125, ((4, 4), (5, 6))),
        TurnRecord(9, 9 + len(second), "stop", 6, 0.5, 0.0),
    ]
    assert trajectory.token_versions() == [3, 4, 6, 6, -1, -1, *[6] * len(second)]
    assert list(trajectory.tokens.ids) == [5, 6, 7, *first, 8, 9, *second]
    assert list(trajectory.tokens.mask) == [0, 0, 0, 1, 1, 1, 1, 0, 0, *[1] * len(second)]
    assert list(trajectory.tokens.log_probs) == [0, 0, 0, *[-0.5] * 4, 0, 0, *[-0.25] * len(second)]
    assert trajectory.tokens.prompt_length == 3
    assert trajectory.states == ["A door.", "It opens."]
    assert trajectory.actions == ["push", "go"]
    assert trajectory.rewards == [0.1, 0.0]
    assert trajectory.dones == [False, False]
    assert trajectory.infos == [info, {}]
    assert trajectory.infos[0]["object"] is info["object"]
    assert trajectory.exact is False
    assert trajectory.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Now: A door."},
        {"role": "assistant", "content": "push"},
        {"role": "user", "content": "It opens."},
        {"role": "assistant", "content": "go"},
    ]


@pytest.mark.parametrize("argument", [1, 2**80, "caf\u00e9 \U0001f600", [1.5, None, {"a": True}]])
def test_tool_calls_come_out_as_they_went_in(chat: Chat, argument: Any) -> None:
    buffer = opened(chat)
    buffer.append_turn(Generation(chat.encode("call"), [0.0] * 4), seconds=0.0)
    calls = [ToolCall("look", {"at": argument}), ToolCall("take", {})]
    messages = [
        {"role": "tool", "name": "look", "content": "A key."},
        {"role": "tool", "name": "take", "content": "Ok."},
    ]
    info = {"tool_calls": [{"name": call.name, "arguments": call.arguments, "seconds": 0.000123} for call in calls]}
    buffer.append_result(TurnResult(messages, truncated=True, info=info, calls=calls))
    trajectory = buffer.to_trajectory(chat)
    assert trajectory.infos == [info]
    assert trajectory.messages[-2:] == messages
    assert trajectory.dones == [True]


@pytest.mark.parametrize(
    "broken", [Generation([1, 2], [0.0]), Generation([1, 2**40], [0.0, 0.0]), Generation([1, 2], [0.0, "x"])]
)
def test_an_answer_that_is_not_whole_adds_nothing(chat: Chat, broken: Generation) -> None:
    buffer = opened(chat)
    with pytest.raises((ValueError, OverflowError, TypeError)):
        buffer.append_turn(broken, seconds=0.0)
    trajectory = buffer.to_trajectory(chat)
    assert (len(trajectory.tokens), trajectory.turns, trajectory.actions) == (3, [], [])


def test_tokens_that_an_engine_keeps_never_change(chat: Chat) -> None:
    buffer = opened(chat)
    kept = buffer.ids
    buffer.append_turn(Generation(chat.encode("push"), [0.0] * 4), seconds=0.0)
    buffer.append_bridge([8])
    assert list(kept) == [5, 6, 7]


def test_a_system_prompt_is_stored_once_and_what_users_say_is_not_kept_for_ever(chat: Chat) -> None:
    def packed(number: int) -> Sequence[str]:
        said = [{"role": role, "content": f"{role} {'says'} {number}"} for role in ("system", "user")]
        return _pack(said)[2::3]

    (system, user), (same_system, same_user) = packed(1), packed(1)
    assert (system, user) == (same_system, same_user)
    assert system is same_system
    assert user is not same_user


def test_the_name_of_a_tool_is_stored_once(chat: Chat) -> None:
    first, second = (_pack([{"role": "tool", "name": f"look_{'up'}", "content": "Found."}]) for _ in range(2))
    assert first[1] is second[1]
    assert first == ("tool", "look_up", "Found.")
