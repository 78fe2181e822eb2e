"""The packed record of a running episode: nothing that goes in is lost or changed when the trajectory is written."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith import Chat, Generation, Trajectory
from turnsmith.rollout.buffer import EpisodeBuffer
from turnsmith.rollout.turn import TurnResult
from turnsmith.tools.definition import ToolCall
from turnsmith.trajectory import TurnRecord


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def written(draft: EpisodeBuffer, chat: Chat) -> Trajectory:
    trajectory = Trajectory()
    draft.write(trajectory, chat)
    return trajectory


def opened(chat: Chat) -> EpisodeBuffer:
    draft = EpisodeBuffer()
    draft.open("A door.", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Now: A door."}])
    draft.prompt([5, 6, 7])
    return draft


def test_an_episode_that_never_began_is_empty(chat: Chat) -> None:
    assert written(EpisodeBuffer(), chat) == Trajectory()


def test_a_prompt_that_was_too_long_keeps_its_messages_and_no_tokens(chat: Chat) -> None:
    draft = EpisodeBuffer()
    draft.open("A door.", [{"role": "user", "content": "A door."}])
    assert written(draft, chat) == Trajectory(messages=[{"role": "user", "content": "A door."}])


def test_two_turns_come_out_as_they_went_in(chat: Chat) -> None:
    draft = opened(chat)
    info = {"object": object()}
    first, second = chat.encode("push"), [*chat.encode("go"), chat.close_id]
    draft.speak(Generation(first, [-0.5] * len(first), "length", 3, swaps=((1, 4), (2, 6))), seconds=0.25)
    draft.wait(0.125)
    draft.hear(TurnResult([{"role": "user", "content": "It opens."}], reward=0.1, info=info))
    draft.go_on([8, 9])
    draft.speak(Generation(second, [-0.25] * len(second), "stop", 6, exact=False), seconds=0.5)
    trajectory = written(draft, chat)  # the second step failed, or was never done
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
    draft = opened(chat)
    draft.speak(Generation(chat.encode("call"), [0.0] * 4), seconds=0.0)
    calls = [ToolCall("look", {"at": argument}), ToolCall("take", {})]
    messages = [
        {"role": "tool", "name": "look", "content": "A key."},
        {"role": "tool", "name": "take", "content": "Ok."},
    ]
    info = {"tool_calls": [{"name": call.name, "arguments": call.arguments, "seconds": 0.000123} for call in calls]}
    draft.hear(TurnResult(messages, truncated=True, info=info, calls=calls))
    trajectory = written(draft, chat)
    assert trajectory.infos == [info]
    assert trajectory.messages[-2:] == messages
    assert trajectory.dones == [True]


@pytest.mark.parametrize(
    "broken", [Generation([1, 2], [0.0]), Generation([1, 2**40], [0.0, 0.0]), Generation([1, 2], [0.0, "x"])]
)
def test_an_answer_that_is_not_whole_adds_nothing(chat: Chat, broken: Generation) -> None:
    draft = opened(chat)
    with pytest.raises((ValueError, OverflowError, TypeError)):
        draft.speak(broken, seconds=0.0)
    trajectory = written(draft, chat)
    assert (len(trajectory.tokens), trajectory.turns, trajectory.actions) == (3, [], [])


def test_tokens_that_an_engine_keeps_never_change(chat: Chat) -> None:
    draft = opened(chat)
    kept = draft.ids
    draft.speak(Generation(chat.encode("push"), [0.0] * 4), seconds=0.0)
    draft.go_on([8])
    assert list(kept) == [5, 6, 7]
